//! Faults that the simulator has to find, planted one at a time; nothing of it is there without the feature `planted-faults`.

/// Each is a mistake that somebody could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    None,
    /// PUBACK, PUBREC and PUBCOMP leave before the journal has what they speak of.
    AcknowledgeBeforeCommit,
    /// PUBREL leaves before the journal has the PUBREC.
    ReleaseBeforeCommit,
    /// QoS 2 is delivered before the journal has the message.
    DeliverBeforeCommit,
    /// CONNACK does not wait.
    ConnackBeforeCommit,
    /// SUBACK and UNSUBACK do not wait.
    SubackBeforeCommit,
    /// A message that is sent again does not say so.
    ForgetDup,
    /// That a packet identifier is free again is not recorded.
    ForgetFreed,
    /// What clients acknowledge is not recorded.
    ForgetSettled,
    /// That a retained message was cleared is not recorded by the owner of its topic.
    ForgetCleared,
    /// A message that goes cold is left out now and then.
    DropCold,
    /// A start does not route what a shard had not routed.
    SkipUnrouted,
    /// The wills of sessions are not restored.
    ForgetWill,
    /// A checkpoint leaves out what is in flight.
    CheckpointWithoutInflight,
    /// A checkpoint says that nothing old is waited for.
    CheckpointForgetsOldest,
    /// A subscription that was removed is not recorded.
    ForgetUnsubscribed,
    /// PUBACK and PUBREC leave before the tap has kept the message.
    AcknowledgeBeforeTap,
    /// A QoS 2 message that comes again after a restart is not given to the tap.
    ForgetTap,
    /// A checkpoint does not look into pages, so that segments with what they name are removed.
    CheckpointForgetsPages,
    /// A page that is written once more leaves out the first position that is waited for.
    MoveDropsPosition,
    /// What begins to wait before a shard hears of a commit in the same tick is not done then.
    ForgetWaiting,
    /// Who publishes over the API is told before the journal has it.
    TellBeforeCommit,
    /// A message that goes cold in the queue of a group is left out now and then.
    DropHeld,
    /// A checkpoint does not look into the queues of groups, so that segments with what they name are removed.
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
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    use super::Fault;

    static PLANTED: AtomicU8 = AtomicU8::new(0);

    /// From now on, in all shards of the process.
    pub fn plant(fault: Fault) {
        PLANTED.store(fault as u8, Relaxed);
    }

    pub(crate) fn is_planted(fault: Fault) -> bool {
        PLANTED.load(Relaxed) == fault as u8
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
