//! PURE: a pod's spec → the Engine's create requests, and back from labels.
