//! Runs of messages that go in the same bytes to the same connections, handed out once for the whole run.
//!
//! A publisher's buffer, or the mail of another shard, often holds many messages in a row for one list of subscribers. As long as
//! they are QoS 0 and nobody on the list wants them in a form of its own, nothing is done per subscriber: the run is a
//! stretch of the arena that grows. `Core::settle` ends it and gives it to everybody; that happens before anything else is queued
//! for any connection, before a link or a subscription changes, and when the shard has taken its input.

use mqtt::{PacketType, PublishExtras, QoS};

use crate::deliver::{Core, NO_CONN};
use crate::effect::{ConnSlot, DropReason, Now};
use crate::message::Publication;
use crate::outbox::Range;
use crate::shard::{Interested, Shard};
use crate::shared::GROUP_KEY;
use crate::subscriptions::{Entry, ListId};

/// With fewer, the usual way costs no more.
const MEMBERS_MIN: usize = 2;

#[derive(Default)]
pub struct Broadcast {
    /// While the shard takes input; nobody would end a run at other times.
    is_open: bool,
    /// The list of the latest message that went the usual way: worth an audience when it is met again.
    met: Option<ListId>,
    audience: Option<Audience>,
    run: Run,
}

/// A list's subscribers, valid until a subscription or a link of the shard changes.
struct Audience {
    list: ListId,
    is_v5: bool,
    maximum_packet_size: usize,
    /// None if some want a form of their own.
    members: Vec<Member>,
}

struct Member {
    session: u32,
    conn: ConnSlot,
}

#[derive(Default)]
struct Run {
    now: Now,
    start: u32,
    messages: Vec<Encoded>,
    payload_bytes: usize,
}

#[derive(Clone, Copy)]
struct Encoded {
    end: u32,
    payload_bytes: u32,
}

impl Shard {
    /// Adds a message to the run for a list. False if it has to go the usual way.
    #[inline]
    pub(crate) fn broadcast(&mut self, now: Now, list: ListId, p: &Publication<'_>) -> bool {
        let is_each_told = self.core.is_each_delivery_told();
        let broadcast = &mut self.core.broadcast;
        if !broadcast.is_open || is_each_told || p.qos != QoS::AtMostOnce || p.retain {
            return false;
        }
        if broadcast.audience.as_ref().is_none_or(|audience| audience.list != list) {
            let entries = self.subscriptions.entries(list);
            if broadcast.met != Some(list) || entries.len() < MEMBERS_MIN {
                broadcast.met = Some(list);
                return false;
            }
            self.core.settle();
            self.core.broadcast.audience = Some(self.core.audience(list, entries));
        }
        self.core.add_to_run(now, p)
    }
}

impl Core {
    pub fn open_broadcast(&mut self) {
        self.broadcast.is_open = true;
    }

    pub fn close_broadcast(&mut self) {
        self.settle();
        self.broadcast.is_open = false;
    }

    /// Before subscriptions or links change.
    pub fn forget_audience(&mut self) {
        self.settle();
        self.broadcast.audience = None;
        self.broadcast.met = None;
    }

    /// Ends the run, if there is one.
    #[inline]
    pub fn settle(&mut self) {
        if !self.broadcast.run.messages.is_empty() {
            self.hand_out();
        }
    }

    fn audience(&self, list: ListId, entries: &[Entry<Interested>]) -> Audience {
        let first = self.link(entries[0].key & !GROUP_KEY);
        let mut audience = Audience {
            list,
            is_v5: first.is_v5,
            maximum_packet_size: usize::MAX,
            members: Vec::new(),
        };
        if self.config.is_qos0_queued || !entries.iter().all(|entry| self.is_plain(entry, first.is_v5)) {
            return audience;
        }
        for entry in entries {
            let link = self.link(entry.key);
            let limit = link.maximum_packet_size as usize;
            audience.maximum_packet_size = audience.maximum_packet_size.min(limit);
            audience.members.push(Member {
                session: entry.key,
                conn: ConnSlot(link.conn),
            });
        }
        audience
    }

    /// Whether a subscriber gets every message of its list at once, in the form that it shares with others of its version.
    fn is_plain(&self, entry: &Entry<Interested>, is_v5: bool) -> bool {
        if entry.key & GROUP_KEY != 0 || entry.value.identifier != 0 || entry.value.options.no_local {
            return false;
        }
        let link = self.link(entry.key);
        link.conn != NO_CONN && link.is_v5 == is_v5 && !link.is_filtered && !link.is_replaying && !link.uses_aliases
    }

    fn add_to_run(&mut self, now: Now, p: &Publication<'_>) -> bool {
        let Some(audience) = self
            .broadcast
            .audience
            .as_ref()
            .filter(|audience| !audience.members.is_empty())
        else {
            return false;
        };
        let (is_v5, limit) = (audience.is_v5, audience.maximum_packet_size);
        let extras = PublishExtras::default();
        let (range, _) = self.encode(now, is_v5, p, QoS::AtMostOnce, false, false, None, extras);
        if range.len() > limit {
            self.outbox.arena.truncate(range.start as usize);
            return false;
        }
        if self
            .broadcast
            .run
            .messages
            .last()
            .is_some_and(|last| last.end != range.start)
        {
            self.hand_out();
        }
        let run = &mut self.broadcast.run;
        if run.messages.is_empty() {
            run.now = now;
            run.start = range.start;
        }
        run.messages.push(Encoded {
            end: range.end,
            payload_bytes: p.payload.len() as u32,
        });
        run.payload_bytes += p.payload.len();
        true
    }

    #[inline(never)]
    fn hand_out(&mut self) {
        let mut run = std::mem::take(&mut self.broadcast.run);
        let audience = self.broadcast.audience.take().expect("a run has an audience");
        let whole = run.range();
        let count = run.messages.len() as u64;
        let mut complete = 0;
        for member in &audience.members {
            if self.outbox.queued_bytes(member.conn) + whole.len() <= self.config.output_buffer_bytes {
                self.outbox.push(member.conn, whole);
                self.count_broadcast(member.session, count, whole.len());
                complete += 1;
            } else {
                self.hand_out_one_by_one(member, &run);
            }
        }
        self.stats.messages_sent[QoS::AtMostOnce as usize] += complete * count;
        self.stats.packets_sent[PacketType::Publish as usize] += complete * count;
        self.stats.bytes_sent += complete * whole.len() as u64;
        self.stats.publish_bytes_sent += complete * run.payload_bytes as u64;
        run.messages.clear();
        run.payload_bytes = 0;
        self.broadcast.run = run;
        self.broadcast.audience = Some(audience);
    }

    /// To a connection that is near its limit: as many as it takes.
    fn hand_out_one_by_one(&mut self, member: &Member, run: &Run) {
        let mut start = run.start;
        for &Encoded { end, payload_bytes } in &run.messages {
            if self.outbox.queued_bytes(member.conn) > self.config.output_buffer_bytes {
                self.dropped(run.now, member.session, DropReason::SlowConsumer);
            } else {
                let range = Range { start, end };
                self.outbox.push(member.conn, range);
                self.count_sent(member.session, QoS::AtMostOnce, range.len(), payload_bytes as usize);
            }
            start = end;
        }
    }
}

impl Run {
    fn range(&self) -> Range {
        Range {
            start: self.start,
            end: self.messages.last().map_or(self.start, |last| last.end),
        }
    }
}
