//! Durability: the journal records of a shard, and recovery from them.
//!
//! - `record` is the format of the records.
//! - `pending_records` has the `Ledger`: the records of a tick and the actions that wait for their commit.
//! - `journaling` decides which changes the `Ledger` records and which replies wait for the commit.
//! - `journaled_queue` holds queue entries whose messages are only in the journal, packed by `entry_list` and `pages`;
//!   `cold` moves the messages of sessions there and back.
//! - `checkpoint` and `compaction` rewrite live state so that old segments can be deleted.
//! - `recovery` replays the journal, and `restore` builds shards from the result.
//!
//! Invariant: the shard sends no reply that a client relies on before the journal has committed the records behind it.

pub mod entry;
pub mod record;
pub mod recovery;
pub mod restore;

pub(crate) mod checkpoint;
pub(crate) mod cold;
pub mod compaction;
pub(crate) mod ended_sessions;
pub(crate) mod entry_list;
pub(crate) mod journaled_queue;
pub(crate) mod journaling;
pub(crate) mod pages;
pub(crate) mod pending_records;
pub(crate) mod record_fields;
