//! The tokens of a connection for the limits of its publish rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::publish_limits::PublishLimit;
use crate::token_bucket::{TokenBucket, TokenRate};

/// Minimum interval between two reports about the same bucket. The condition can last for hours.
const REPORT_INTERVAL_MS: u64 = 60_000;

/// Tokens that a connection takes in advance while it reads several messages, so that most of them need no access to a
/// bucket that other threads use as well.
const MESSAGES_IN_ADVANCE: u64 = 64;
const BYTES_IN_ADVANCE: u64 = 64 * 1024;

/// The tokens of a connection for each limit that applies to it.
#[derive(Debug)]
pub struct PublishQuota {
    parts: Vec<QuotaPart>,
    /// Index of the part whose tokens the connection waits for. Set until the server reads from it again, so that
    /// another connection that continues at the same time leaves it an equal part.
    waits_for: Option<usize>,
    /// End of the wait, and the latest timer that was set for it, in monotonic milliseconds.
    pub(crate) ready_at_ms: u64,
    pub(crate) timer_at_ms: u64,
    /// The connection has published since the last call of `give_back`, so that another message is likely.
    has_published: bool,
}

/// The tokens of one limit.
#[derive(Debug)]
pub(crate) struct QuotaPart {
    limit: PublishLimit,
    rate: TokenRate,
    buckets: Arc<PublishBuckets>,
    /// Tokens that were taken and not used.
    tokens: u64,
    /// Tokens that the connection got without waiting since its turn began.
    taken_in_turn: u64,
}

/// Why a PUBLISH is not handled now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Throttling {
    /// The connection waits for tokens of this limit.
    Wait(PublishLimit),
    /// Other connections wait. The connection continues at once, behind those that can continue.
    Yield,
}

enum PartWait {
    UntilMs(u64),
    ForOthers,
}

impl QuotaPart {
    pub fn new(limit: PublishLimit, rate: TokenRate, buckets: Arc<PublishBuckets>) -> QuotaPart {
        QuotaPart {
            limit,
            rate,
            buckets,
            tokens: 0,
            taken_in_turn: 0,
        }
    }

    fn cost(&self, packet_bytes: usize) -> u64 {
        match self.limit.is_of_bytes() {
            true => packet_bytes as u64,
            false => 1,
        }
    }

    fn in_advance(&self) -> u64 {
        match self.limit.is_of_bytes() {
            true => BYTES_IN_ADVANCE,
            false => MESSAGES_IN_ADVANCE,
        }
    }

    /// Takes the tokens for `cost`. `spare` more can be used soon.
    fn take(&mut self, now_ms: u64, cost: u64, mut spare: u64) -> Result<(), PartWait> {
        if self.tokens >= cost {
            return Ok(());
        }
        let bucket = self.buckets.of(self.limit);
        if bucket.has_waiting() {
            let turn = bucket.turn(self.rate);
            if self.taken_in_turn >= turn {
                return Err(PartWait::ForOthers);
            }
            spare = spare.min(turn);
        }
        let granted = bucket.take(self.rate, now_ms, cost - self.tokens, spare);
        self.tokens += granted.tokens;
        if granted.ready_at_ms > now_ms {
            return Err(PartWait::UntilMs(granted.ready_at_ms));
        }
        self.taken_in_turn = self.taken_in_turn.saturating_add(granted.tokens);
        Ok(())
    }

    fn give_back(&mut self) {
        self.taken_in_turn = 0;
        let unused = std::mem::take(&mut self.tokens);
        self.buckets.of(self.limit).give_back(self.rate, unused);
    }
}

impl PublishQuota {
    pub(crate) fn new(parts: Vec<QuotaPart>) -> PublishQuota {
        PublishQuota {
            parts,
            waits_for: None,
            ready_at_ms: 0,
            timer_at_ms: 0,
            has_published: false,
        }
    }

    /// Returns the quota of a data stream of this connection, which shares its buckets.
    pub(crate) fn for_data_stream(&self) -> PublishQuota {
        let part = |part: &QuotaPart| QuotaPart::new(part.limit, part.rate, part.buckets.clone());
        PublishQuota::new(self.parts.iter().map(part).collect())
    }

    /// Takes the tokens of a PUBLISH of this size, unless the connection must wait. Then the same packet is passed
    /// again after the wait.
    pub(crate) fn take(&mut self, now_ms: u64, packet_bytes: usize) -> Result<(), Throttling> {
        for (index, part) in self.parts.iter_mut().enumerate() {
            let spare = if self.has_published { part.in_advance() } else { 0 };
            match part.take(now_ms, part.cost(packet_bytes), spare) {
                Ok(()) => {}
                Err(wait) => {
                    part.buckets.of(part.limit).begin_wait();
                    self.waits_for = Some(index);
                    let (ready_at_ms, throttling) = match wait {
                        PartWait::ForOthers => (now_ms, Throttling::Yield),
                        PartWait::UntilMs(ready_at_ms) => (ready_at_ms, Throttling::Wait(part.limit)),
                    };
                    self.ready_at_ms = ready_at_ms;
                    return Err(throttling);
                }
            }
        }
        for part in &mut self.parts {
            part.tokens -= part.cost(packet_bytes);
        }
        self.has_published = true;
        Ok(())
    }

    /// Returns the limit for which the connection waits.
    pub fn throttled_by(&self) -> Option<PublishLimit> {
        self.waits_for.map(|index| self.parts[index].limit)
    }

    /// Ends the wait if its time has come. Returns whether the connection must still wait.
    pub(crate) fn must_wait(&mut self, now_ms: u64) -> bool {
        if self.waits_for.is_some() && now_ms >= self.ready_at_ms {
            self.end_wait();
        }
        self.waits_for.is_some()
    }

    fn end_wait(&mut self) {
        if let Some(index) = self.waits_for.take() {
            let part = &self.parts[index];
            part.buckets.of(part.limit).end_wait();
            self.parts.iter_mut().for_each(|part| part.taken_in_turn = 0);
        }
    }

    /// Returns all tokens that are not used.
    pub(crate) fn give_back(&mut self) {
        self.has_published = false;
        self.parts.iter_mut().for_each(QuotaPart::give_back);
    }

    /// Returns the buckets of the limit for which the connection waits.
    pub(crate) fn awaited(&self) -> Option<&PublishBuckets> {
        Some(&self.parts[self.waits_for?].buckets)
    }
}

impl Drop for PublishQuota {
    fn drop(&mut self) {
        self.end_wait();
        self.give_back();
    }
}

/// The buckets of a client, a user, an address or a listener.
#[derive(Debug, Default)]
pub(crate) struct PublishBuckets {
    /// Name of the owner for reports: `user:alice`. Empty for a client.
    pub owner: Box<str>,
    messages: TokenBucket,
    bytes: TokenBucket,
    /// Time of the last report in monotonic milliseconds; 0 for none.
    reported_at_ms: AtomicU64,
}

impl PublishBuckets {
    pub fn of_owner(owner: Box<str>) -> PublishBuckets {
        PublishBuckets {
            owner,
            ..PublishBuckets::default()
        }
    }

    pub fn of(&self, limit: PublishLimit) -> &TokenBucket {
        match limit.is_of_bytes() {
            true => &self.bytes,
            false => &self.messages,
        }
    }

    /// Returns whether a slowed publisher is reported now. Limits the number of reports.
    pub fn can_report(&self, now_ms: u64) -> bool {
        let before = self.reported_at_ms.load(Ordering::Relaxed);
        let is_due = before == 0 || now_ms >= before.saturating_add(REPORT_INTERVAL_MS);
        if is_due {
            self.reported_at_ms.store(now_ms.max(1), Ordering::Relaxed);
        }
        is_due
    }

    pub fn is_unused(&self, now_ms: u64) -> bool {
        self.messages.is_full(now_ms) && self.bytes.is_full(now_ms)
    }
}
