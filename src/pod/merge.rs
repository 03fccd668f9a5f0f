//! Sets from all sources → one desired set, conflicts named.
