//! A member of a share group.

use mqtt::{QoS, SubscriptionOptions};

use crate::access::MemberRights;
use crate::message::{Publication, granted};
use crate::slots::SessionRef;

#[derive(Clone, Debug)]
pub(crate) struct ShareGroupMember {
    pub(super) session: SessionRef,
    /// The group does not select the member for topics that it may not read.
    pub(super) rights: MemberRights,
    pub(super) options: SubscriptionOptions,
    pub(super) identifier: u32,
    pub(super) is_online: bool,
    /// The session is durable.
    pub(super) is_durable: bool,
    /// Messages sent to the member and not acknowledged, if the strategy counts them.
    pub(super) inflight: u32,
    /// The member's queue was full. The group does not select it before this time.
    pub(super) full_until_ms: u64,
    /// Length of that delay; grows each time.
    pub(super) full_for_ms: u64,
}

impl ShareGroupMember {
    pub fn session(&self) -> SessionRef {
        self.session
    }

    pub fn maximum_qos(&self) -> QoS {
        self.options.maximum_qos
    }

    pub fn is_online(&self) -> bool {
        self.is_online
    }

    /// Returns whether a message may wait for this member.
    pub fn can_wait_for(&self, p: &Publication<'_>) -> bool {
        granted(p.qos, self.options.maximum_qos) != QoS::AtMostOnce && self.rights.can_receive(p.topic)
    }
}
