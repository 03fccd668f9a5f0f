//! `FakeRuntime`: a scriptable, recording runtime in memory.
