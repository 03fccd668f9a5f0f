//! Tests of the status.
