//! Faults that the simulator must detect. One at a time can be active in a thread. Compiled only with the feature
//! `planted-faults`, which only the tests of the simulator enable.

/// A programming mistake to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// PUBACK, PUBREC and PUBCOMP are sent before the commit.
    AcknowledgeBeforeCommit,
    /// PUBREL is sent before PUBREC is committed.
    ReleaseBeforeCommit,
    /// A QoS 2 message is delivered before its commit.
    DeliverBeforeCommit,
    /// CONNACK is sent before the commit.
    ConnackBeforeCommit,
    /// SUBACK and UNSUBACK are sent before the commit.
    SubackBeforeCommit,
    /// DUP is not set on a resent message.
    ForgetDup,
    /// The release of a packet identifier is not recorded.
    ForgetFreed,
    /// Acknowledgements of clients are not recorded.
    ForgetSettled,
    /// The owner of a topic does not record that its retained message was cleared.
    ForgetCleared,
    /// Some messages are dropped when they are evicted from memory.
    DropCold,
    /// Recovery does not route messages that a shard had not routed.
    SkipUnrouted,
    /// Recovery does not restore wills.
    ForgetWill,
    /// A checkpoint omits messages in flight.
    CheckpointWithoutInflight,
    /// A checkpoint reports that no old message is needed.
    CheckpointForgetsOldest,
    /// Unsubscriptions are not recorded.
    ForgetUnsubscribed,
    /// PUBACK and PUBREC are sent before the tap has stored the message.
    AcknowledgeBeforeTap,
    /// A QoS 2 message that is repeated after a restart is not passed to the tap.
    ForgetTap,
    /// A checkpoint ignores pages, so that segments with their messages are deleted.
    CheckpointForgetsPages,
    /// A rewritten page omits its first remaining entry.
    MoveDropsPosition,
    /// Waiters that are added in the same tick, before the shard learns of a commit, are not released by it.
    ForgetWaiting,
    /// Publications over the API are confirmed before the commit.
    TellBeforeCommit,
    /// Some messages are dropped when they are evicted from the queue of a group.
    DropHeld,
    /// A checkpoint ignores the queues of groups, so that segments with their messages are deleted.
    CheckpointForgetsHeld,
}

impl Fault {
    pub const ALL: [Fault; 23] = [
        Fault::AcknowledgeBeforeCommit,
        Fault::ReleaseBeforeCommit,
        Fault::DeliverBeforeCommit,
        Fault::ConnackBeforeCommit,
        Fault::SubackBeforeCommit,
        Fault::ForgetDup,
        Fault::ForgetFreed,
        Fault::ForgetSettled,
        Fault::ForgetCleared,
        Fault::DropCold,
        Fault::SkipUnrouted,
        Fault::ForgetWill,
        Fault::CheckpointWithoutInflight,
        Fault::CheckpointForgetsOldest,
        Fault::ForgetUnsubscribed,
        Fault::AcknowledgeBeforeTap,
        Fault::ForgetTap,
        Fault::CheckpointForgetsPages,
        Fault::MoveDropsPosition,
        Fault::ForgetWaiting,
        Fault::TellBeforeCommit,
        Fault::DropHeld,
        Fault::CheckpointForgetsHeld,
    ];
}

#[cfg(feature = "planted-faults")]
mod planted {
    use std::cell::Cell;

    use super::Fault;

    thread_local! {
        static PLANTED: Cell<Fault> = const { Cell::new(Fault::None) };
    }

    /// Activates a fault in all shards of this thread. Other tests of the process run on other threads.
    pub fn plant(fault: Fault) {
        PLANTED.set(fault);
    }

    pub(crate) fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == fault
    }
}

#[cfg(feature = "planted-faults")]
pub(crate) use planted::is_planted;
#[cfg(feature = "planted-faults")]
pub use planted::plant;

#[cfg(not(feature = "planted-faults"))]
#[inline(always)]
pub(crate) const fn is_planted(_: Fault) -> bool {
    false
}
