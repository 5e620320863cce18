//! Mail between the shards of a node: one ordered stream per pair and tick, so that crossing threads costs once per
//! batch.
//!
//! Messages are encoded, so a batch is one allocation whatever their number. Everything else is a `MailRequest`.
//!
//! ```text
//! record  := tag u8, envelope, publication        (ROUTE, ROUTE_RETAINED, LATE, RETAIN, MEMBER, RETURN or REPLAY,
//!                                                  and the fields of `Envelope`)
//!          | REQUEST                              (the next of `requests`)
//! publication := qos u8, flags u8, expires_at_ms u64, place u64, origin shard u32, origin epoch u32, publisher u32,
//!                topic bytes u32, properties bytes u32, payload bytes u32, topic, properties, payload,
//!                [provenance bytes u32, provenance], [next of `owners`]
//! ```
//! Integers are in native byte order, because mail never leaves the process.

use std::sync::Arc;

use mqtt::QoS;

use crate::ShardId;
use crate::access::MemberRights;
use crate::delivery::GroupRef;
use crate::durable::record::{GroupKey, SizedMessage};
use crate::message::{MessageOrigin, Publication, RecordLocation};
use crate::owners::ClientAccount;
use crate::provenance::Provenance;
use crate::retained::ScanCursor;
use crate::shared::member::ShareGroupMember;
use crate::slots::{GroupEpoch, GroupIndex, ReplayNumber, SessionEpoch, SessionRef, SessionSlot, SubscribeTicket};

/// Mail for one other shard. Opaque to the driver.
#[derive(Default)]
pub struct Mail {
    bytes: Vec<u8>,
    requests: Vec<MailRequest>,
    /// Owners of the messages to retain.
    owners: Vec<Arc<ClientAccount>>,
    publications: u32,
    /// Position of the appended batch that pending places refer to.
    base: u64,
    from: u16,
}

/// How the receiving shard handles a publication.
#[derive(Clone, Copy, Debug)]
pub enum Envelope {
    /// Deliver to the subscriptions of the shard. `stamp` numbers the retained messages of the sending shard from 1; 0
    /// for other messages.
    Route { stamp: u64 },
    /// Like `Route`, for a message that shard `from` received but did not send here itself.
    Late { from: ShardId, stamp: u64 },
    /// Store the message as retained, or clear the topic. `routed_by` is the bit set of the shards that route the
    /// message.
    Retain { routed_by: u64, stamp: u64 },
    /// Deliver to a member of a shared subscription.
    Member {
        session: SessionSlot,
        epoch: SessionEpoch,
        subscription: MemberSubscription,
    },
    /// A member cannot receive the message; select another.
    Return(GroupHold),
    /// Deliver a retained message of a replay.
    Replay {
        session: SessionSlot,
        epoch: SessionEpoch,
        number: ReplayNumber,
    },
}

/// The subscription of a member of a share group.
#[derive(Clone, Copy, Debug)]
pub struct MemberSubscription {
    pub group: GroupRef,
    pub maximum_qos: QoS,
    pub retain_as_published: bool,
    /// Subscription Identifier; 0 for none.
    pub identifier: u32,
    /// The message belongs to the member's session, connected or not, and does not return to the group.
    pub is_assigned: bool,
}

/// The group of a returned message. `held_by` is the group that holds it in the journal, if any.
#[derive(Clone, Copy, Debug)]
pub struct GroupHold {
    pub index: GroupIndex,
    pub epoch: GroupEpoch,
    pub held_by: GroupKey,
}

impl GroupHold {
    /// Returns the hold of a message that the group of a member has dispatched.
    pub fn of(group: GroupRef, held_by: GroupKey) -> GroupHold {
        GroupHold {
            index: group.index,
            epoch: group.epoch,
            held_by,
        }
    }
}

/// A returned message that is only in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnedMessage {
    pub message: SizedMessage,
    /// Group that holds the message in the journal; 0 if none.
    pub held_by: GroupKey,
}

/// Requests other than publications.
#[derive(Debug)]
pub enum MailRequest {
    Join {
        share_name: Box<str>,
        filter: Box<str>,
        member: ShareGroupMember,
        ticket: SubscribeTicket,
    },
    /// The member has joined or left the group, so SUBACK or UNSUBACK can be sent.
    Joined {
        session: SessionSlot,
        epoch: SessionEpoch,
        ticket: SubscribeTicket,
    },
    Leave {
        share_name: Box<str>,
        filter: Box<str>,
        member: SessionRef,
        /// Ticket of the UNSUBACK that waits for the answer.
        ticket: Option<SubscribeTicket>,
    },
    /// The member has connected or disconnected; the session continues.
    MemberState {
        share_name: Box<str>,
        filter: Box<str>,
        member: SessionRef,
        is_online: bool,
    },
    /// The access rules of the member have changed.
    MemberRights {
        share_name: Box<str>,
        filter: Box<str>,
        member: SessionRef,
        rights: MemberRights,
    },
    /// Return the group's messages that were sent to the member, if it is still disconnected.
    Reclaim {
        session: SessionSlot,
        epoch: SessionEpoch,
        group: GroupRef,
    },
    /// Messages of the member that are only in the journal return to the group.
    ReturnCold {
        index: GroupIndex,
        epoch: GroupEpoch,
        returned: Vec<ReturnedMessage>,
    },
    /// The member's queue is full. The message has been returned.
    Full {
        index: GroupIndex,
        epoch: GroupEpoch,
        member: SessionRef,
    },
    /// The member has acknowledged a message. Sent only if the strategy counts messages in flight.
    Acknowledged {
        index: GroupIndex,
        epoch: GroupEpoch,
        member: SessionRef,
    },
    /// Send matching retained messages, starting at the cursor.
    ReplayRequest(ReplayRequest),
    /// The sender has started a checkpoint, or has finished its part. All earlier mail of the sender precedes this
    /// request.
    Barrier { is_end: bool },
    /// The batch has been sent. More messages follow if there is a cursor.
    ReplayEnd {
        session: SessionSlot,
        epoch: SessionEpoch,
        number: ReplayNumber,
        cursor: Option<ScanCursor>,
        /// The replays of `following` that match no message.
        empty: Vec<FollowingReplay>,
    },
}

/// Asks for the retained messages that match a filter of a session.
#[derive(Debug)]
pub struct ReplayRequest {
    pub session: SessionSlot,
    pub epoch: SessionEpoch,
    pub number: ReplayNumber,
    pub filter: Box<str>,
    pub cursor: Option<ScanCursor>,
    /// Later replays of the session that will ask the same shard.
    pub following: Vec<FollowingReplay>,
    /// Shard of the session.
    pub from: ShardId,
}

/// A replay that waits for the active one.
#[derive(Debug)]
pub struct FollowingReplay {
    pub filter: Box<str>,
    pub number: ReplayNumber,
}

const ROUTE: u8 = 1;
const RETAIN: u8 = 2;
const MEMBER: u8 = 3;
const RETURN: u8 = 4;
const REPLAY: u8 = 5;
const REQUEST: u8 = 6;
const ROUTE_RETAINED: u8 = 7;
const LATE: u8 = 8;

/// Flags of a publication.
const IS_RETAINED: u8 = 1;
const HAS_PROVENANCE: u8 = 1 << 1;
const HAS_OWNER: u8 = 1 << 2;

impl Mail {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the size, for the driver's limits.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len() + self.requests.len() * size_of::<MailRequest>()
    }

    pub(crate) fn sent(&mut self, from: ShardId, base: u64) {
        (self.from, self.base) = (from.0, base);
    }

    pub(crate) fn from(&self) -> u16 {
        self.from
    }

    pub fn publications(&self) -> u32 {
        self.publications
    }

    pub(crate) fn request(&mut self, request: MailRequest) {
        self.bytes.push(REQUEST);
        self.requests.push(request);
    }

    pub(crate) fn publication(&mut self, envelope: Envelope, p: &Publication<'_>) {
        self.publications += 1;
        let out = &mut self.bytes;
        match envelope {
            Envelope::Route { stamp: 0 } => out.push(ROUTE),
            Envelope::Route { stamp } => {
                out.push(ROUTE_RETAINED);
                out.extend_from_slice(&stamp.to_ne_bytes());
            }
            Envelope::Late { from, stamp } => {
                out.push(LATE);
                put_u32s(out, [u32::from(from.0)]);
                out.extend_from_slice(&stamp.to_ne_bytes());
            }
            Envelope::Retain { routed_by, stamp } => {
                out.push(RETAIN);
                out.extend_from_slice(&routed_by.to_ne_bytes());
                out.extend_from_slice(&stamp.to_ne_bytes());
            }
            Envelope::Member {
                session,
                epoch,
                subscription,
            } => {
                let MemberSubscription {
                    group,
                    maximum_qos,
                    retain_as_published,
                    identifier,
                    is_assigned,
                } = subscription;
                out.push(MEMBER);
                put_u32s(
                    out,
                    [
                        session.0,
                        epoch.0,
                        u32::from(group.shard.0),
                        group.index.0,
                        group.epoch.0,
                        identifier,
                    ],
                );
                out.extend_from_slice(&group.key.0.to_ne_bytes());
                out.extend_from_slice(&[maximum_qos as u8, u8::from(retain_as_published), u8::from(is_assigned)]);
            }
            Envelope::Return(GroupHold { index, epoch, held_by }) => {
                out.push(RETURN);
                put_u32s(out, [index.0, epoch.0]);
                out.extend_from_slice(&held_by.0.to_ne_bytes());
            }
            Envelope::Replay { session, epoch, number } => {
                out.push(REPLAY);
                put_u32s(out, [session.0, epoch.0, number.0]);
            }
        }
        // Only the shard that retains the message counts it.
        let owner = p.owner.filter(|_| matches!(envelope, Envelope::Retain { .. }));
        self.owners.extend(owner.cloned());
        put_publication(out, p, owner.is_some());
    }

    pub(crate) fn read(self) -> MailReader {
        MailReader {
            bytes: self.bytes,
            at: 0,
            requests: self.requests.into_iter(),
            owners: self.owners,
            owners_read: 0,
            base: self.base,
        }
    }
}

pub(crate) struct MailReader {
    bytes: Vec<u8>,
    at: usize,
    requests: std::vec::IntoIter<MailRequest>,
    owners: Vec<Arc<ClientAccount>>,
    owners_read: usize,
    base: u64,
}

pub(crate) enum MailItem<'a> {
    Publication(Envelope, Publication<'a>),
    MailRequest(MailRequest),
}

impl MailReader {
    pub fn next(&mut self) -> Option<MailItem<'_>> {
        if self.at == self.bytes.len() {
            return None;
        }
        let mut cursor = MailDecoder {
            bytes: &self.bytes,
            at: self.at,
            owners: &self.owners[self.owners_read..],
        };
        let item = match cursor.u8() {
            REQUEST => MailItem::MailRequest(self.requests.next().expect("one request per REQUEST")),
            tag => {
                let envelope = cursor.envelope(tag);
                MailItem::Publication(envelope, cursor.publication(self.base))
            }
        };
        self.at = cursor.at;
        self.owners_read = self.owners.len() - cursor.owners.len();
        Some(item)
    }
}

fn put_u32s<const N: usize>(out: &mut Vec<u8>, values: [u32; N]) {
    for value in values {
        out.extend_from_slice(&value.to_ne_bytes());
    }
}

fn put_publication(out: &mut Vec<u8>, p: &Publication<'_>, has_owner: bool) {
    let provenance = p.provenance.as_bytes();
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(p.retain, IS_RETAINED) | flag(!provenance.is_empty(), HAS_PROVENANCE) | flag(has_owner, HAS_OWNER);
    out.extend_from_slice(&[p.qos as u8, flags]);
    out.extend_from_slice(&p.expires_at_ms.unwrap_or(u64::MAX).to_ne_bytes());
    out.extend_from_slice(&p.place.to_bits().to_ne_bytes());
    put_u32s(
        out,
        [
            u32::from(p.origin.shard.0),
            p.origin.epoch.0,
            p.publisher_hash,
            p.topic.len() as u32,
            p.properties.len() as u32,
            p.payload.len() as u32,
        ],
    );
    out.extend_from_slice(p.topic.as_bytes());
    out.extend_from_slice(p.properties);
    out.extend_from_slice(p.payload);
    if !provenance.is_empty() {
        put_u32s(out, [provenance.len() as u32]);
        out.extend_from_slice(provenance);
    }
}

/// Decodes values that this module has encoded.
struct MailDecoder<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Owners that have not been read.
    owners: &'a [Arc<ClientAccount>],
}

impl<'a> MailDecoder<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let part = &self.bytes[self.at..self.at + n];
        self.at += n;
        part
    }

    fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take(4).try_into().expect("four bytes were taken"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take(8).try_into().expect("eight bytes were taken"))
    }

    fn qos(&mut self) -> QoS {
        QoS::from_bits(self.u8()).expect("written from a QoS")
    }

    fn envelope(&mut self, tag: u8) -> Envelope {
        match tag {
            ROUTE => Envelope::Route { stamp: 0 },
            ROUTE_RETAINED => Envelope::Route { stamp: self.u64() },
            LATE => Envelope::Late {
                from: ShardId(self.u32() as u16),
                stamp: self.u64(),
            },
            RETAIN => Envelope::Retain {
                routed_by: self.u64(),
                stamp: self.u64(),
            },
            MEMBER => {
                let (session, epoch) = (SessionSlot(self.u32()), SessionEpoch(self.u32()));
                let mut group = GroupRef {
                    shard: ShardId(self.u32() as u16),
                    index: GroupIndex(self.u32()),
                    epoch: GroupEpoch(self.u32()),
                    key: GroupKey::default(),
                };
                let identifier = self.u32();
                group.key = GroupKey(self.u64());
                let (maximum_qos, retain_as_published, is_assigned) = (self.qos(), self.u8() == 1, self.u8() == 1);
                Envelope::Member {
                    session,
                    epoch,
                    subscription: MemberSubscription {
                        group,
                        maximum_qos,
                        retain_as_published,
                        identifier,
                        is_assigned,
                    },
                }
            }
            RETURN => Envelope::Return(GroupHold {
                index: GroupIndex(self.u32()),
                epoch: GroupEpoch(self.u32()),
                held_by: GroupKey(self.u64()),
            }),
            REPLAY => Envelope::Replay {
                session: SessionSlot(self.u32()),
                epoch: SessionEpoch(self.u32()),
                number: ReplayNumber(self.u32()),
            },
            _ => unreachable!("every tag is written by this module"),
        }
    }

    fn publication(&mut self, base: u64) -> Publication<'a> {
        let qos = self.qos();
        let flags = self.u8();
        let expires_at_ms = self.u64();
        let place = RecordLocation::from_bits(self.u64()).placed(base);
        let origin = MessageOrigin {
            shard: ShardId(self.u32() as u16),
            epoch: SessionEpoch(self.u32()),
        };
        let publisher_hash = self.u32();
        let (topic, properties, payload) = (self.u32() as usize, self.u32() as usize, self.u32() as usize);
        let (topic, properties, payload) = (self.take(topic), self.take(properties), self.take(payload));
        let provenance = match flags & HAS_PROVENANCE {
            0 => Provenance::NONE,
            _ => {
                let length = self.u32() as usize;
                Provenance::from_written(self.take(length))
            }
        };
        let owner = match flags & HAS_OWNER {
            0 => None,
            _ => {
                let (owner, rest) = self.owners.split_first().expect("one owner per HAS_OWNER");
                self.owners = rest;
                Some(owner)
            }
        };
        Publication {
            topic: std::str::from_utf8(topic).expect("written from a str"),
            properties,
            payload,
            qos,
            retain: flags & IS_RETAINED != 0,
            expires_at_ms: (expires_at_ms != u64::MAX).then_some(expires_at_ms),
            origin,
            publisher_hash,
            place,
            provenance,
            owner,
        }
    }
}
