//! `PodManager`: desired pods and their mirrors, indexed.
