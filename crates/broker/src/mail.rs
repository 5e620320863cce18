//! Mail between the shards of a node: one ordered stream per pair and tick, so that a crossing costs once per batch.
//!
//! Messages are written as bytes, whatever their number, so that a batch is one allocation; rarer things are letters.
//!
//! ```text
//! record  := tag u8, envelope, publication        (tags ROUTE, ROUTE_RETAINED, LATE, RETAIN, MEMBER, RETURN, REPLAY; the fields of `Envelope`)
//!          | LETTER                               (the next of `letters`)
//! publication := qos u8, flags u8, expires_at_ms u64, place u64, origin shard u32, origin epoch u32, publisher u32,
//!                topic bytes u32, properties bytes u32, payload bytes u32, topic, properties, payload,
//!                [provenance bytes u32, provenance]
//! ```
//! Integers are in native order: mail never leaves the process.

use mqtt::QoS;

use crate::ShardId;
use crate::durable::record::GroupKey;
use crate::message::{Origin, Place, Publication};
use crate::outgoing::GroupRef;
use crate::provenance::Provenance;
use crate::retained::ScanCursor;
use crate::shared::{GivenBack, Member};

/// What has gathered for one other shard. Opaque to the driver.
#[derive(Default)]
pub struct Mail {
    bytes: Vec<u8>,
    letters: Vec<Letter>,
    publications: u32,
    /// Where the batch was appended that pending places are in.
    base: u64,
    from: u16,
}

/// A session of some shard, as long as it is the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRef {
    pub shard: ShardId,
    pub session: u32,
    pub epoch: u32,
}

/// What is to be done with a publication.
#[derive(Clone, Copy, Debug)]
pub enum Envelope {
    /// Deliver to the subscriptions of the shard. A retained message has the number that its shard gives to each, from 1 on.
    Route { stamp: u64 },
    /// The same, for a message that the shard `from` did not send itself.
    Late { from: ShardId, stamp: u64 },
    /// Store or clear as the retained message of its topic. `told` has the shards that get the message to route, one bit each.
    Retain { told: u64, stamp: u64 },
    /// Deliver to one member of a shared subscription.
    Member {
        session: u32,
        epoch: u32,
        group: GroupRef,
        maximum_qos: QoS,
        retain_as_published: bool,
        identifier: u32,
    },
    /// A member could not keep it: choose another.
    /// `held_by`: which group has it in the journal, if any.
    Return { index: u32, epoch: u32, held_by: GroupKey },
    /// A retained message that a session asked for.
    Replay { session: u32, epoch: u32, number: u32 },
}

/// Everything that is not a publication.
#[derive(Debug)]
pub enum Letter {
    Join {
        share_name: Box<str>,
        filter: Box<str>,
        member: Member,
        ticket: u32,
    },
    /// The group is in its home's index, or the member is in the group no longer: SUBACK or UNSUBACK may go out.
    Joined { session: u32, epoch: u32, ticket: u32 },
    Leave {
        share_name: Box<str>,
        filter: Box<str>,
        member: SessionRef,
        /// Of the UNSUBACK that waits for it.
        ticket: Option<u32>,
    },
    /// Connected or gone away, the session goes on.
    MemberState {
        share_name: Box<str>,
        filter: Box<str>,
        member: SessionRef,
        is_online: bool,
    },
    /// Give back what the member was sent for this group, if it is still away.
    Reclaim { session: u32, epoch: u32, group: GroupRef },
    /// What the member has in the journal only comes back to the group.
    TakeBack {
        index: u32,
        epoch: u32,
        given_back: Vec<GivenBack>,
    },
    /// A member had no space for a message, which has come back.
    Full { index: u32, epoch: u32, member: SessionRef },
    /// A member is done with a message (only asked for where the strategy counts).
    Acknowledged { index: u32, epoch: u32, member: SessionRef },
    /// Send retained messages that match, from the cursor on.
    ReplayRequest {
        session: u32,
        epoch: u32,
        number: u32,
        filter: Box<str>,
        cursor: Option<ScanCursor>,
        from: ShardId,
    },
    /// The sender has begun a checkpoint, or has written all of its part: what it had sent before has come before this.
    Barrier { is_end: bool },
    /// All of the batch has been sent; there is more if there is a cursor.
    ReplayEnd {
        session: u32,
        epoch: u32,
        number: u32,
        cursor: Option<ScanCursor>,
    },
}

const ROUTE: u8 = 1;
const RETAIN: u8 = 2;
const MEMBER: u8 = 3;
const RETURN: u8 = 4;
const REPLAY: u8 = 5;
const LETTER: u8 = 6;
const ROUTE_RETAINED: u8 = 7;
const LATE: u8 = 8;

/// Flags of a publication.
const IS_RETAINED: u8 = 1;
const HAS_PROVENANCE: u8 = 1 << 1;

impl Mail {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// For the driver's limits.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len() + self.letters.len() * size_of::<Letter>()
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

    pub(crate) fn letter(&mut self, letter: Letter) {
        self.bytes.push(LETTER);
        self.letters.push(letter);
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
            Envelope::Retain { told, stamp } => {
                out.push(RETAIN);
                out.extend_from_slice(&told.to_ne_bytes());
                out.extend_from_slice(&stamp.to_ne_bytes());
            }
            Envelope::Member {
                session,
                epoch,
                group,
                maximum_qos,
                retain_as_published,
                identifier,
            } => {
                out.push(MEMBER);
                put_u32s(
                    out,
                    [
                        session,
                        epoch,
                        u32::from(group.shard.0),
                        group.index,
                        group.epoch,
                        identifier,
                    ],
                );
                out.extend_from_slice(&group.key.0.to_ne_bytes());
                out.extend_from_slice(&[maximum_qos as u8, u8::from(retain_as_published)]);
            }
            Envelope::Return { index, epoch, held_by } => {
                out.push(RETURN);
                put_u32s(out, [index, epoch]);
                out.extend_from_slice(&held_by.0.to_ne_bytes());
            }
            Envelope::Replay { session, epoch, number } => {
                out.push(REPLAY);
                put_u32s(out, [session, epoch, number]);
            }
        }
        put_publication(out, p);
    }

    pub(crate) fn read(self) -> MailReader {
        MailReader {
            bytes: self.bytes,
            at: 0,
            letters: self.letters.into_iter(),
            base: self.base,
        }
    }
}

pub(crate) struct MailReader {
    bytes: Vec<u8>,
    at: usize,
    letters: std::vec::IntoIter<Letter>,
    base: u64,
}

pub(crate) enum Item<'a> {
    Publication(Envelope, Publication<'a>),
    Letter(Letter),
}

impl MailReader {
    pub fn next(&mut self) -> Option<Item<'_>> {
        if self.at == self.bytes.len() {
            return None;
        }
        let mut cursor = Cut {
            bytes: &self.bytes,
            at: self.at,
        };
        let item = match cursor.u8() {
            LETTER => Item::Letter(self.letters.next().expect("one letter per LETTER")),
            tag => {
                let envelope = cursor.envelope(tag);
                Item::Publication(envelope, cursor.publication(self.base))
            }
        };
        self.at = cursor.at;
        Some(item)
    }
}

fn put_u32s<const N: usize>(out: &mut Vec<u8>, values: [u32; N]) {
    for value in values {
        out.extend_from_slice(&value.to_ne_bytes());
    }
}

fn put_publication(out: &mut Vec<u8>, p: &Publication<'_>) {
    let provenance = p.provenance.as_bytes();
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(p.retain, IS_RETAINED) | flag(!provenance.is_empty(), HAS_PROVENANCE);
    out.extend_from_slice(&[p.qos as u8, flags]);
    out.extend_from_slice(&p.expires_at_ms.unwrap_or(u64::MAX).to_ne_bytes());
    out.extend_from_slice(&p.place.to_bits().to_ne_bytes());
    put_u32s(
        out,
        [
            u32::from(p.origin.shard.0),
            p.origin.epoch,
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

/// Cuts values off bytes that this module wrote.
struct Cut<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cut<'a> {
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
                told: self.u64(),
                stamp: self.u64(),
            },
            MEMBER => {
                let (session, epoch) = (self.u32(), self.u32());
                let mut group = GroupRef {
                    shard: ShardId(self.u32() as u16),
                    index: self.u32(),
                    epoch: self.u32(),
                    key: GroupKey::default(),
                };
                let identifier = self.u32();
                group.key = GroupKey(self.u64());
                let (maximum_qos, retain_as_published) = (self.qos(), self.u8() == 1);
                Envelope::Member {
                    session,
                    epoch,
                    group,
                    maximum_qos,
                    retain_as_published,
                    identifier,
                }
            }
            RETURN => Envelope::Return {
                index: self.u32(),
                epoch: self.u32(),
                held_by: GroupKey(self.u64()),
            },
            REPLAY => Envelope::Replay {
                session: self.u32(),
                epoch: self.u32(),
                number: self.u32(),
            },
            _ => unreachable!("every tag is written by this module"),
        }
    }

    fn publication(&mut self, base: u64) -> Publication<'a> {
        let qos = self.qos();
        let flags = self.u8();
        let expires_at_ms = self.u64();
        let place = Place::from_bits(self.u64()).placed(base);
        let origin = Origin {
            shard: ShardId(self.u32() as u16),
            epoch: self.u32(),
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
        }
    }
}
