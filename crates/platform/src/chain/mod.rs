//! Rule chains: ThingsBoard's JSON of nodes and labelled connections.

mod defaults;

pub use defaults::{RootShape, default_root_chain, root_metadata};
