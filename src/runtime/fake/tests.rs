//! Tests of the fake.
