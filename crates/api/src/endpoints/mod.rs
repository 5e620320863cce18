//! The endpoints, one file per subject: its bodies as types, its handlers, and its part of the list.

pub mod health;
pub mod stats;
