//! Images: their names, and how they get here.

pub mod reference;
