//! A message for one session: the fields that differ between its recipients.

use std::sync::Arc;

use mqtt::QoS;

use crate::ShardId;
use crate::durable::record::{GroupKey, Seq};
use crate::message::{Message, Publication};
use crate::slots::{GroupEpoch, GroupIndex};

/// How a subscription receives a message.
#[derive(Clone, Copy, Debug)]
pub struct DeliveryOptions<'a> {
    pub qos: QoS,
    /// Retain flag of the outgoing packet.
    pub retain: bool,
    pub identifiers: &'a [u32],
    pub group: Option<GroupRef>,
}

impl DeliveryOptions<'_> {
    /// Returns a message as the subscription receives it.
    pub fn applied_to<'p>(self, p: &Publication<'p>) -> Publication<'p> {
        Publication {
            qos: self.qos,
            retain: self.retain,
            ..*p
        }
    }
}

/// A message for one session, with the fields that are specific to the session.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub message: Arc<Message>,
    pub qos: QoS,
    pub retain: bool,
    /// Number of the message in the session; 0 if it is not assigned yet.
    pub seq: Seq,
    pub tag: DeliveryTag,
}

impl Delivery {
    /// Returns the memory that the delivery uses, approximately. Used for limits.
    pub fn stored_bytes(&self) -> usize {
        self.message.stored_bytes() + self.tag.stored_bytes()
    }

    /// Returns the bytes that the delivery counts for the limit of a queue. The same as those of its entry while the
    /// message is only in the journal.
    #[inline]
    pub fn queued_bytes(&self) -> usize {
        self.message.size().bytes() + self.tag.stored_bytes()
    }

    pub fn options(&self) -> DeliveryOptions<'_> {
        DeliveryOptions {
            qos: self.qos,
            retain: self.retain,
            identifiers: self.tag.identifiers(),
            group: self.tag.group(),
        }
    }

    /// Returns the message with the QoS and retain flag of this session.
    pub fn publication(&self) -> Publication<'_> {
        Publication {
            qos: self.qos,
            retain: self.retain,
            ..self.message.publication()
        }
    }
}

/// Fields that most deliveries do not have.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum DeliveryTag {
    #[default]
    None,
    /// Subscription Identifier.
    Identifier(u32),
    Full(Box<FullDeliveryTag>),
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct FullDeliveryTag {
    pub identifiers: Vec<u32>,
    /// Shared subscription that selected this session. The message returns to it if the session cannot receive it.
    pub group: Option<GroupRef>,
}

/// A shared subscription on any shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRef {
    pub shard: ShardId,
    pub index: GroupIndex,
    pub epoch: GroupEpoch,
    /// Key in the journal; 0 if the group is not durable.
    pub key: GroupKey,
}

impl GroupRef {
    /// Returns whether both refer to the same group, regardless of the key.
    pub fn is_same_group(self, other: GroupRef) -> bool {
        (self.shard, self.index, self.epoch) == (other.shard, other.index, other.epoch)
    }
}

impl DeliveryTag {
    /// Maximum size of the tag of a group's message, which has at most one identifier.
    pub const GROUP_BYTES_MAX: usize = size_of::<FullDeliveryTag>() + size_of::<u32>();

    #[inline]
    pub fn new(identifiers: &[u32], group: Option<GroupRef>) -> DeliveryTag {
        match (identifiers, group) {
            ([], None) => DeliveryTag::None,
            ([id], None) => DeliveryTag::Identifier(*id),
            _ => DeliveryTag::Full(Box::new(FullDeliveryTag {
                identifiers: identifiers.to_vec(),
                group,
            })),
        }
    }

    /// Counts the identifiers, because a message may have as many as the client has subscriptions.
    #[inline]
    pub fn stored_bytes(&self) -> usize {
        match self {
            DeliveryTag::None | DeliveryTag::Identifier(_) => 0,
            DeliveryTag::Full(full) => size_of::<FullDeliveryTag>() + size_of_val(&full.identifiers[..]),
        }
    }

    pub fn identifiers(&self) -> &[u32] {
        match self {
            DeliveryTag::None => &[],
            DeliveryTag::Identifier(id) => std::slice::from_ref(id),
            DeliveryTag::Full(full) => &full.identifiers,
        }
    }

    pub fn group(&self) -> Option<GroupRef> {
        match self {
            DeliveryTag::Full(full) => full.group,
            _ => None,
        }
    }

    /// Returns the key of the durable group that the message comes from.
    pub fn group_key(&self) -> Option<GroupKey> {
        self.group().map(|group| group.key).filter(|key| key.0 != 0)
    }
}
