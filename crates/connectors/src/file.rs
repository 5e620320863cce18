//! File: an action that appends a line of JSON for each message to a file, and begins another when it is long or old.
//!
//! `config.rs` has the options, `writer.rs` the files. A batch is confirmed when it is written, and with `fsync` on the disk.

mod config;
mod sink;
mod writer;

pub use config::{FileActionConfig, FileSync};
pub use sink::FileSink;
