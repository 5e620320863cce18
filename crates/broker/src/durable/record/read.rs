//! Decodes records. Any input yields a record or an error.

use mqtt::{QoS, RetainHandling, SubscriptionOptions};

use super::tags::*;
use super::*;

impl JournalRecord<'_> {
    fn message_mut(&mut self) -> Option<&mut RecordPosition> {
        match self {
            JournalRecord::Queued { message, .. }
            | JournalRecord::Returned { message, .. }
            | JournalRecord::GroupDropped { message, .. }
            | JournalRecord::Retained { message, .. }
            | JournalRecord::Delayed { message, .. }
            | JournalRecord::DelayedDone { message }
            | JournalRecord::HeldDropped { message, .. } => Some(message),
            _ => None,
        }
    }
}

impl<'a> JournalRecord<'a> {
    /// Decodes the record at `position`.
    pub fn read_at(position: RecordPosition, bytes: &'a [u8]) -> Result<JournalRecord<'a>, NotARecord> {
        let Some((&BACK, rest)) = bytes.split_first() else {
            return JournalRecord::read(bytes);
        };
        let mut record = JournalRecord::read(rest)?;
        let before = record.message_mut().and_then(|message| {
            message.0 = position.0.checked_sub(message.0)?;
            Some(())
        });
        before.map(|()| record).ok_or(NotARecord {
            expected: "a distance not greater than the record's position",
        })
    }

    /// Decodes a record that does not refer to a message of its own batch.
    pub fn read(bytes: &'a [u8]) -> Result<JournalRecord<'a>, NotARecord> {
        let mut r = Reader(bytes);
        let record = match r.u8()? {
            BOOT => JournalRecord::Boot {
                unix_ms: r.integer()?,
                shards: r.small()?,
                last_key: r.integer()?,
            },
            CHECKPOINT => JournalRecord::Checkpoint {
                unix_ms: r.integer()?,
                shards: r.small()?,
                last_key: r.integer()?,
            },
            tag @ (TIME | TIME_AFTER_STEP) => JournalRecord::Time {
                unix_ms: r.integer()?,
                ahead_ms: if tag == TIME { 0 } else { r.integer()? },
            },
            MESSAGE => JournalRecord::Message(r.message(false)?),
            OWNED_MESSAGE => JournalRecord::Message(r.message(true)?),
            tag @ (QUEUED | SIZED_QUEUED) => JournalRecord::Queued {
                message: r.position()?,
                size: r.size_if(tag == SIZED_QUEUED)?,
                targets: Targets(r.rest()),
            },
            ROUTED => JournalRecord::Routed {
                by: r.small()?,
                from: r.small()?,
                up_to: r.position()?,
            },
            SETTLED => JournalRecord::Settled(SettledItems(r.rest())),
            PACKET_ID_FREED => JournalRecord::PacketIdFreed {
                session: r.session()?,
                packet_id: r.small()?,
            },
            SESSION => JournalRecord::Session(r.session_record()?),
            ENTRIES => JournalRecord::Entries {
                session: r.session()?,
                entries: Entries(r.rest()),
            },
            PAGE => JournalRecord::Page {
                session: r.session()?,
                entries: PackedEntries(r.rest()),
            },
            PAGE_LOADED => JournalRecord::PageLoaded {
                session: r.session()?,
                entries: PackedEntries(r.rest()),
            },
            tag @ (PAGES | SIZED_PAGES) => JournalRecord::Pages {
                session: r.session()?,
                pages: PageRefs {
                    bytes: r.rest(),
                    is_sized: tag == SIZED_PAGES,
                },
            },
            CONNECTED => JournalRecord::Connected {
                session: r.session()?,
                terms: r.terms()?,
            },
            DISCONNECTED => JournalRecord::Disconnected {
                session: r.session()?,
                unix_ms: r.integer()?,
                expiry_s: r.small()?,
                has_will: r.integer()? != 0,
                started: r.integer()?,
            },
            WILL_PUBLISHED => JournalRecord::WillPublished { session: r.session()? },
            ENDED => JournalRecord::Ended { session: r.session()? },
            SUBSCRIBED => JournalRecord::Subscribed {
                session: r.session()?,
                subscription: r.subscription()?,
            },
            UNSUBSCRIBED => JournalRecord::Unsubscribed {
                session: r.session()?,
                filter: r.text()?,
            },
            REPLAYED => JournalRecord::Replayed {
                session: r.session()?,
                filter: r.text()?,
            },
            GROUP => JournalRecord::Group {
                group: r.group()?,
                share_name: r.text()?,
                filter: r.text()?,
            },
            tag @ (GROUP_ENTRIES | SIZED_GROUP_ENTRIES) => JournalRecord::GroupEntries {
                group: r.group()?,
                messages: SizedMessages {
                    bytes: r.rest(),
                    is_sized: tag == SIZED_GROUP_ENTRIES,
                },
            },
            GROUP_ENDED => JournalRecord::GroupEnded { group: r.group()? },
            tag @ (RETURNED | SIZED_RETURNED) => JournalRecord::Returned {
                session: r.session()?,
                seq: r.integer()?,
                group: r.group()?,
                message: r.position()?,
                size: r.size_if(tag == SIZED_RETURNED)?,
            },
            GROUP_DROPPED => JournalRecord::GroupDropped {
                group: r.group()?,
                message: r.position()?,
            },
            RETAINED => JournalRecord::Retained {
                message: r.position()?,
                expires_unix_ms: r.integer()?.checked_sub(1),
                topic: r.text()?,
            },
            RETAINED_CLEARED => JournalRecord::RetainedCleared { topic: r.text()? },
            DELAYED => JournalRecord::Delayed {
                message: r.position()?,
                due_unix_ms: r.integer()?,
            },
            DELAYED_DONE => JournalRecord::DelayedDone { message: r.position()? },
            HELD_DROPPED => JournalRecord::HeldDropped {
                session: r.session()?,
                message: r.position()?,
            },
            DAMAGED => JournalRecord::Damaged,
            _ => {
                return Err(NotARecord {
                    expected: "a known record kind",
                });
            }
        };
        if r.0.is_empty() {
            Ok(record)
        } else {
            Err(NotARecord {
                expected: "the end of the record",
            })
        }
    }
}

pub(in crate::durable) struct Reader<'a>(pub(in crate::durable) &'a [u8]);

impl<'a> Reader<'a> {
    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(in crate::durable) fn u8(&mut self) -> Result<u8, NotARecord> {
        let (first, rest) = self.0.split_first().ok_or(NotARecord { expected: "a byte" })?;
        self.0 = rest;
        Ok(*first)
    }

    pub(in crate::durable) fn integer(&mut self) -> Result<u64, NotARecord> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(NotARecord {
            expected: "an integer of at most 64 bits",
        })
    }

    pub(in crate::durable) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, NotARecord> {
        T::try_from(self.integer()?).map_err(|_| NotARecord {
            expected: "an integer that fits its field",
        })
    }

    fn bytes(&mut self) -> Result<&'a [u8], NotARecord> {
        let length: usize = self.small()?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(NotARecord {
            expected: "the number of bytes given by the length",
        })?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a str, NotARecord> {
        std::str::from_utf8(self.bytes()?).map_err(|_| NotARecord { expected: "UTF-8" })
    }

    fn qos(bits: u8) -> Result<QoS, NotARecord> {
        match bits & QOS {
            0 => Ok(QoS::AtMostOnce),
            1 => Ok(QoS::AtLeastOnce),
            2 => Ok(QoS::ExactlyOnce),
            _ => Err(NotARecord {
                expected: "a QoS of 0, 1 or 2",
            }),
        }
    }

    /// Reads the size of a message, which is unknown before record version 3.
    fn size_if(&mut self, is_sized: bool) -> Result<MessageSize, NotARecord> {
        let size = is_sized.then(|| self.u8()).transpose()?;
        Ok(size.map_or(MessageSize::UNKNOWN, MessageSize))
    }

    pub(super) fn sized_message(&mut self, is_sized: bool) -> Result<SizedMessage, NotARecord> {
        Ok(SizedMessage {
            position: self.position()?,
            size: self.size_if(is_sized)?,
        })
    }

    fn position(&mut self) -> Result<RecordPosition, NotARecord> {
        self.integer().map(RecordPosition)
    }

    fn session(&mut self) -> Result<SessionKey, NotARecord> {
        self.integer().map(SessionKey)
    }

    fn group(&mut self) -> Result<GroupKey, NotARecord> {
        self.integer().map(GroupKey)
    }

    fn message(&mut self, has_owner: bool) -> Result<MessageRecord<'a>, NotARecord> {
        let flags = self.u8()?;
        let has = |flag: u8| flags & flag != 0;
        let (shard, others, publisher_hash) = (self.small()?, self.integer()?, self.small()?);
        let expires_unix_ms = has(HAS_EXPIRY).then(|| self.integer()).transpose()?;
        let due_unix_ms = has(HAS_DUE).then(|| self.integer()).transpose()?;
        let retained = match has(IS_RETAINED) {
            false => None,
            true => Some(RetainedTerms {
                expires_unix_ms: self.integer()?.checked_sub(1),
            }),
        };
        let publisher = match has(HAS_PUBLISHER) {
            false => None,
            true => Some((self.session()?, self.small()?)),
        };
        let provenance = match has(HAS_PROVENANCE) {
            false => Provenance::NONE,
            true => Provenance::from_written(self.bytes()?),
        };
        let owner = has_owner.then(|| self.text()).transpose()?;
        Ok(MessageRecord {
            qos: Self::qos(flags)?,
            retain: has(RETAIN),
            expires_unix_ms,
            publisher_hash,
            shard,
            others,
            due_unix_ms,
            retained,
            publisher,
            provenance,
            owner,
            topic: self.text()?,
            properties: self.bytes()?,
            targets: Targets(self.bytes()?),
            payload: self.rest(),
        })
    }

    pub(super) fn target(&mut self) -> Result<RecordTarget, NotARecord> {
        let flags = self.u8()?;
        let (key, seq) = (self.integer()?, self.integer()?);
        Ok(RecordTarget {
            to: match flags & IS_GROUP {
                0 => Recipient::Session(SessionKey(key)),
                _ => Recipient::Group(GroupKey(key)),
            },
            seq,
            qos: Self::qos(flags)?,
            retain: flags & RETAIN != 0,
            group: self.group_if(flags)?,
            identifiers: self.identifiers_if(flags)?,
        })
    }

    pub(super) fn entry(&mut self) -> Result<SessionEntry, NotARecord> {
        let flags = self.u8()?;
        let (message, seq) = (self.position()?, self.integer()?);
        Ok(SessionEntry {
            message,
            seq,
            qos: Self::qos(flags)?,
            retain: flags & RETAIN != 0,
            is_released: flags & IS_RELEASED != 0,
            group: self.group_if(flags)?,
            identifiers: self.identifiers_if(flags)?,
            size: self.size_if(flags & HAS_SIZE != 0)?,
        })
    }

    fn group_if(&mut self, flags: u8) -> Result<Option<GroupKey>, NotARecord> {
        (flags & HAS_GROUP != 0).then(|| self.group()).transpose()
    }

    fn identifiers_if(&mut self, flags: u8) -> Result<Vec<u32>, NotARecord> {
        if flags & HAS_IDENTIFIERS == 0 {
            return Ok(Vec::new());
        }
        let count = self.integer()?;
        (0..count).map(|_| self.small()).collect()
    }

    pub(super) fn settled(&mut self) -> Result<AcknowledgedEntry, NotARecord> {
        let (session, packed) = (self.session()?, self.integer()?);
        Ok(AcknowledgedEntry {
            session,
            seq: packed >> 1,
            is_release: packed & 1 == 1,
        })
    }

    pub(super) fn page_ref(&mut self, is_sized: bool) -> Result<PageRef, NotARecord> {
        Ok(PageRef {
            at: self.position()?,
            first: self.integer()?,
            count: self.small()?,
            skipped: self.small()?,
            queued_qos0: self.small()?,
            oldest: self.position()?,
            bytes: if is_sized { self.integer()? } else { 0 },
        })
    }

    fn session_record(&mut self) -> Result<SessionRecord<'a>, NotARecord> {
        let session = self.session()?;
        let (created_unix_ms, left) = (self.integer()?, self.integer()?);
        let (next_seq, started) = (self.integer()?, self.integer()?);
        let client_id = self.text()?;
        let count = self.integer()?;
        let subscriptions = (0..count).map(|_| self.subscription()).collect::<Result<_, _>>()?;
        let count = self.integer()?;
        let received = (0..count).map(|_| self.small()).collect::<Result<_, _>>()?;
        Ok(SessionRecord {
            session,
            client_id,
            created_unix_ms,
            left_unix_ms: left.checked_sub(1),
            next_seq,
            started,
            subscriptions,
            received,
            terms: self.terms()?,
        })
    }

    fn terms(&mut self) -> Result<ConnectSettings<'a>, NotARecord> {
        let (version, flags) = (self.u8()?, self.u8()?);
        let expiry_s = self.small()?;
        let user_name = (flags & HAS_USER_NAME != 0).then(|| self.text()).transpose()?;
        let address = (flags & HAS_ADDRESS != 0).then(|| self.address()).transpose()?;
        let mountpoint = (flags & HAS_MOUNTPOINT != 0).then(|| self.text()).transpose()?;
        let will = (self.u8()? == 1).then(|| self.will()).transpose()?;
        Ok(ConnectSettings {
            user_name,
            address,
            version,
            is_superuser: flags & IS_SUPERUSER != 0,
            has_grant: flags & HAS_GRANT != 0,
            is_bridge: flags & IS_BRIDGE != 0,
            expiry_s,
            mountpoint,
            will,
        })
    }

    fn address(&mut self) -> Result<IpAddr, NotARecord> {
        let bytes = self.bytes()?;
        let v4 = || <[u8; 4]>::try_from(bytes).map(IpAddr::from);
        let v6 = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
        v4().or_else(|_| v6()).map_err(|_| NotARecord {
            expected: "an address of 4 or 16 bytes",
        })
    }

    fn will(&mut self) -> Result<WillRecord<'a>, NotARecord> {
        let flags = self.u8()?;
        let (delay_s, expiry) = (self.small()?, self.integer()?);
        let message_expiry_s = match expiry.checked_sub(1) {
            None => None,
            Some(s) => Some(u32::try_from(s).map_err(|_| NotARecord {
                expected: "a Message Expiry Interval of 32 bits",
            })?),
        };
        Ok(WillRecord {
            topic: self.text()?,
            payload: self.bytes()?,
            properties: self.bytes()?,
            qos: Self::qos(flags)?,
            retain: flags & RETAIN != 0,
            delay_s,
            message_expiry_s,
        })
    }

    fn subscription(&mut self) -> Result<SubscriptionRecord<'a>, NotARecord> {
        let filter = self.text()?;
        let flags = self.u8()?;
        let retain_handling = match flags >> 4 & 0b11 {
            0 => RetainHandling::SendAtSubscribe,
            1 => RetainHandling::SendIfNew,
            _ => RetainHandling::DoNotSend,
        };
        let identifier: u32 = self.small()?;
        Ok(SubscriptionRecord {
            filter,
            options: SubscriptionOptions {
                maximum_qos: Self::qos(flags)?,
                no_local: flags & 1 << 2 != 0,
                retain_as_published: flags & 1 << 3 != 0,
                retain_handling,
            },
            identifier: (identifier != 0).then_some(identifier),
            is_replaying: flags & 1 << 6 != 0,
        })
    }
}
