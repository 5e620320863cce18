//! What of the broker's state outlives the process: the records that go to the journal, and the way back from them.
//!
//! `ledger` gathers a tick's records and what waits for them; `keep` says what is recorded when; `cold` is what a session has in the
//! journal only, packed in an `entry_list` and in `pages`; `record` is the format. The rule of the house: nothing that a client may rely on is said before the journal has
//! what makes it true.

pub mod entry;
pub mod record;
pub mod recovery;
pub mod restore;

pub(crate) mod checkpoint;
pub(crate) mod cold;
pub(crate) mod ends;
pub(crate) mod entry_list;
pub(crate) mod keep;
pub(crate) mod ledger;
pub mod moves;
pub(crate) mod pages;

pub use cold::MOVER;

pub use crate::shared::GIVER;
