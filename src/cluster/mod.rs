//! The API server: connection, Node, Lease, mirror pods, status writes, events.
//!
//! Everything here writes what others decided and reads what others need. The agent lives without
//! it: no part of it holds a pod up, and while the API server is away all of it waits.
