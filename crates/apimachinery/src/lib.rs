//! The parts of a Kubernetes API server as pure values: the served resources, errors, request
//! parameters, selectors, patches, tables, and a cache from which watches resume.
//!
//! Objects are JSON values, as clients send and read them. This crate has no clock, disk or socket: the
//! embedded API in the agent has those, and its objects come from the agent's sources.
//!
//! | Module | Holds |
//! |---|---|
//! | [`resources`] | the resources that are served, and their paths |
//! | [`discovery`] | the documents by which clients find them |
//! | [`openapi`] | the documents of paths and schemas |
//! | [`status`] | errors, as Kubernetes' clients read them |
//! | [`options`] | the parameters of requests |
//! | [`paging`] | lists, whole and in pages |
//! | [`selector`] | label and field selectors |
//! | [`cache`] | all objects, and the changes that a watch resumes from |
//! | [`meta`] | names, metadata and what a write keeps of it |
//! | [`garbage`] | finalizers, and what goes with its owners |
//! | [`bounds`] | limits on the memory that a request may cost |
//! | [`patch`] | JSON, merge and strategic patches |
//! | [`apply`] | server-side apply: who manages which field, and conflicts |
//! | [`table`] | the columns that kubectl prints |
//! | [`protobuf`] | bodies that clients send in protobuf |

pub mod apply;
pub mod bounds;
pub mod cache;
pub mod discovery;
pub mod garbage;
pub mod meta;
pub mod openapi;
pub mod options;
pub mod paging;
pub mod patch;
pub mod protobuf;
pub mod resources;
mod schemas;
pub mod selector;
pub mod status;
pub mod table;
