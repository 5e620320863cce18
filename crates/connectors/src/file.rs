//! File: an action that appends one JSON line per message to a file. It starts a new file when the current one reaches
//! its size or age limit.
//!
//! `config.rs` has the options, `writer.rs` the files. A batch is confirmed when it is written, with `fsync` when it is
//! on the disk.

mod config;
mod sink;
mod writer;

pub use config::{FileActionConfig, FileSync};
pub use sink::FileSink;
