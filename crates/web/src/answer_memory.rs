//! One limit for the memory of all answers that clients have not received yet: bodies and WebSocket messages.
//!
//! An answer is charged when it is complete, and released when its last byte was written or its connection ends.
//! A streamed answer is charged for the pieces that wait for the client. Metrics, health checks and answers up to
//! [`SMALL_BYTES`] are not charged, so that they pass when the memory is used up; the number of connections limits
//! them.
//!
//! The clients of one address, or one /64 of IPv6, have at most half of the memory. An answer that is larger than the
//! limit passes if no other answer is charged. If an answer does not fit, the connection of the oldest one is closed
//! after [`UNREAD_MAX`], because a client that reads a byte now and then could occupy the memory for an hour.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use net::client_network;
use tokio::sync::Notify;

use crate::connection_slots::is_health_check;
use crate::problem::HttpProblem;

/// Answers up to this size are not charged.
pub const SMALL_BYTES: usize = 16 << 10;
/// Charge of a streamed answer: limit of the pieces that wait for the client.
pub const STREAM_BYTES: usize = 1 << 20;
/// How long an answer may be charged while others do not fit.
pub const UNREAD_MAX: Duration = Duration::from_secs(30);

/// Metrics can be larger than a small answer.
const METRICS_PATH: &str = "/metrics";

/// Whether the answer to this path is never charged.
pub(crate) fn is_exempt(path: &str) -> bool {
    path == METRICS_PATH || is_health_check(path)
}

/// The charged answers of all listeners.
#[derive(Debug)]
pub struct AnswerMemory {
    max: usize,
    charged: Mutex<ChargedAnswers>,
}

#[derive(Debug, Default)]
struct ChargedAnswers {
    bytes: usize,
    refused: u64,
    next: ChargeNumber,
    by_network: HashMap<IpAddr, usize>,
    /// In the order of their numbers, and thus of their age.
    by_number: BTreeMap<ChargeNumber, ChargedAnswer>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct ChargeNumber(u64);

#[derive(Debug)]
struct ChargedAnswer {
    bytes: usize,
    network: IpAddr,
    since: Instant,
    connection: Arc<Notify>,
}

impl AnswerMemory {
    pub fn new(max: usize) -> Arc<AnswerMemory> {
        Arc::new(AnswerMemory {
            max,
            charged: Mutex::default(),
        })
    }

    /// Returns the memory as a new connection uses it.
    pub fn of_client(self: &Arc<AnswerMemory>, address: IpAddr) -> ClientAnswers {
        ClientAnswers {
            memory: self.clone(),
            network: client_network(address),
            evicted: Arc::new(Notify::new()),
        }
    }

    /// Size of the charged answers.
    pub fn charged_bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Number of answers that did not fit, since the start.
    pub fn refused(&self) -> u64 {
        self.lock().refused
    }

    // Every update leaves the tables consistent, so a panic in another thread cannot break them.
    fn lock(&self) -> MutexGuard<'_, ChargedAnswers> {
        self.charged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChargedAnswers {
    fn fits(&self, bytes: usize, network: IpAddr, max: usize) -> bool {
        let of_network = self.by_network.get(&network).copied().unwrap_or(0);
        let fits = |used: usize, max: usize| used == 0 || used.saturating_add(bytes) <= max;
        fits(self.bytes, max) && fits(of_network, max / 2)
    }

    /// Makes space for an answer of `network`, which does not fit: closes the connection of the answer that has made
    /// no progress for the longest time, if that is longer than [`UNREAD_MAX`]. It is an answer of the same network if
    /// that has used its part, else one of the network with the largest answers.
    fn evict(&self, network: IpAddr, bytes: usize, max: usize, now: Instant) {
        let used = self.by_network.get(&network).copied().unwrap_or(0);
        let is_over_part = used > 0 && used.saturating_add(bytes) > max / 2;
        let most = self.by_network.values().copied().max();
        let is_candidate = |answer: &&ChargedAnswer| match is_over_part {
            true => answer.network == network,
            false => self.by_network.get(&answer.network).copied() == most,
        };
        let candidates = self.by_number.values().filter(is_candidate);
        if let Some(oldest) = candidates.min_by_key(|answer| answer.since)
            && now.saturating_duration_since(oldest.since) >= UNREAD_MAX
        {
            oldest.connection.notify_one();
        }
    }
}

/// The memory for the answers of one connection.
#[derive(Clone, Debug)]
pub struct ClientAnswers {
    memory: Arc<AnswerMemory>,
    network: IpAddr,
    evicted: Arc<Notify>,
}

/// The memory for answers is used up.
#[derive(Debug, PartialEq, Eq)]
pub struct AnswerMemoryFull;

impl From<AnswerMemoryFull> for io::Error {
    fn from(_: AnswerMemoryFull) -> io::Error {
        io::ErrorKind::QuotaExceeded.into()
    }
}

impl ClientAnswers {
    /// Charges an answer. `Ok(None)`: it is too small to be charged.
    pub fn charge(&self, bytes: usize) -> Result<Option<AnswerCharge>, AnswerMemoryFull> {
        self.charge_at(bytes, Instant::now())
    }

    fn charge_at(&self, bytes: usize, now: Instant) -> Result<Option<AnswerCharge>, AnswerMemoryFull> {
        if bytes <= SMALL_BYTES {
            return Ok(None);
        }
        let mut charged = self.memory.lock();
        if !charged.fits(bytes, self.network, self.memory.max) {
            charged.refused += 1;
            charged.evict(self.network, bytes, self.memory.max, now);
            return Err(AnswerMemoryFull);
        }
        let number = charged.next;
        charged.next = ChargeNumber(number.0 + 1);
        charged.bytes += bytes;
        *charged.by_network.entry(self.network).or_default() += bytes;
        let answer = ChargedAnswer {
            bytes,
            network: self.network,
            since: now,
            connection: self.evicted.clone(),
        };
        charged.by_number.insert(number, answer);
        Ok(Some(AnswerCharge {
            memory: self.memory.clone(),
            number,
        }))
    }

    /// Returns when the connection must be closed, because its client has not read an answer for long and others do
    /// not fit.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Charges a message on a WebSocket until `write` has sent it.
    pub async fn charge_message(&self, bytes: usize, write: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let _charge = self.charge(bytes)?;
        tokio::select! {
            written = write => written,
            () = self.evicted() => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Charges an answer until hyper has written it. If it does not fit, returns 503 in its place.
    pub(crate) fn charge_response(&self, response: Response<Body>) -> Response<Body> {
        // The size of a streamed answer is not known yet.
        let size = || response.body().size_hint().exact().map(|bytes| bytes as usize);
        let memory = response.extensions().get::<AnswerBytes>().map(|memory| memory.0);
        let bytes = memory.or_else(size).unwrap_or(STREAM_BYTES);
        match self.charge(bytes) {
            Ok(None) => response,
            Ok(Some(charge)) => response.map(|body| {
                Body::new(ChargedBody {
                    body,
                    charge: Arc::new(charge),
                })
            }),
            Err(AnswerMemoryFull) => HttpProblem::unavailable(
                "the request was processed, but its answer does not fit into api.max_unsent_answers with the answers \
                 that clients have not read yet",
            )
            .into_response(),
        }
    }
}

/// Extension of a streamed answer: the memory of its source, if that is more than the pieces that wait for the client.
#[derive(Clone, Copy, Debug)]
pub struct AnswerBytes(pub usize);

/// A charged answer. Dropping it releases the memory.
#[derive(Debug)]
pub struct AnswerCharge {
    memory: Arc<AnswerMemory>,
    number: ChargeNumber,
}

impl AnswerCharge {
    /// hyper has taken the next piece of the answer, because the client has read the former ones.
    fn progressed(&self, now: Instant) {
        if let Some(answer) = self.memory.lock().by_number.get_mut(&self.number) {
            answer.since = now;
        }
    }
}

impl Drop for AnswerCharge {
    fn drop(&mut self) {
        let mut charged = self.memory.lock();
        let Some(answer) = charged.by_number.remove(&self.number) else {
            return;
        };
        charged.bytes -= answer.bytes;
        if let Some(of_network) = charged.by_network.get_mut(&answer.network) {
            *of_network -= answer.bytes;
            if *of_network == 0 {
                charged.by_network.remove(&answer.network);
            }
        }
    }
}

/// A body whose bytes are charged until hyper drops them, which is after it has written them.
struct ChargedBody {
    body: Body,
    charge: Arc<AnswerCharge>,
}

/// Bytes of a body, for `Bytes::from_owner`.
struct ChargedBytes {
    bytes: Bytes,
    _charge: Arc<AnswerCharge>,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for ChargedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            self.charge.progressed(Instant::now());
        }
        let charged = |bytes| {
            Bytes::from_owner(ChargedBytes {
                bytes,
                _charge: self.charge.clone(),
            })
        };
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(charged))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    fn client(memory: &Arc<AnswerMemory>, address: &str) -> ClientAnswers {
        memory.of_client(address.parse().unwrap())
    }

    #[test]
    fn answers_are_charged_until_they_are_dropped() {
        let memory = AnswerMemory::new(400 * KIB);
        let [north, south, west] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|address| client(&memory, address));
        let first = north.charge(100 * KIB).unwrap();
        let _second = north.charge(100 * KIB).unwrap();
        assert_eq!(
            north.charge(17 * KIB).unwrap_err(),
            AnswerMemoryFull,
            "half of the memory"
        );
        assert!(north.charge(SMALL_BYTES).unwrap().is_none(), "a small answer");
        let third = south.charge(200 * KIB).unwrap();
        assert_eq!(west.charge(17 * KIB).unwrap_err(), AnswerMemoryFull);
        assert_eq!((memory.charged_bytes(), memory.refused()), (400 * KIB, 2));
        drop(first);
        assert!(west.charge(100 * KIB).unwrap().is_some());
        assert_eq!(memory.charged_bytes(), 300 * KIB);
        drop(third);
        assert!(south.charge(200 * KIB).is_ok());
    }

    #[test]
    fn answer_beyond_the_limit_passes_alone() {
        let memory = AnswerMemory::new(100 * KIB);
        let client = client(&memory, "192.0.2.1");
        let large = client.charge(1000 * KIB).unwrap();
        assert!(large.is_some());
        assert!(client.charge(20 * KIB).is_err());
        drop(large);
        let small = client.charge(20 * KIB).unwrap();
        assert!(client.charge(1000 * KIB).is_err());
        drop(small);
        assert_eq!(memory.charged_bytes(), 0);
        assert!(memory.lock().by_network.is_empty());
    }

    #[tokio::test]
    async fn oldest_unread_answer_is_closed_when_others_do_not_fit() {
        let memory = AnswerMemory::new(100 * KIB);
        let [slow, other, third] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|address| client(&memory, address));
        let start = Instant::now();
        let _unread = slow.charge_at(50 * KIB, start).unwrap();
        let _newer = other.charge_at(50 * KIB, start + UNREAD_MAX).unwrap();
        let is_evicted = |client: &ClientAnswers| {
            let evicted = std::pin::pin!(client.evicted());
            evicted
                .poll(&mut Context::from_waker(std::task::Waker::noop()))
                .is_ready()
        };
        assert!(third.charge_at(20 * KIB, start + UNREAD_MAX / 2).is_err());
        assert!(!is_evicted(&slow), "too early");
        assert!(other.charge_at(20 * KIB, start + UNREAD_MAX).is_err());
        assert!(!is_evicted(&slow), "the address has used its own half");
        assert!(third.charge_at(20 * KIB, start + UNREAD_MAX).is_err());
        assert!(is_evicted(&slow) && !is_evicted(&other));
    }

    #[tokio::test]
    async fn bytes_of_a_body_are_charged_after_the_body_has_ended() {
        let memory = AnswerMemory::new(100 * KIB);
        let client = client(&memory, "192.0.2.1");
        let response = client.charge_response(vec![b'x'; 50 * KIB].into_response());
        let mut body = response.into_body();
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let bytes = frame.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert_eq!((bytes.len(), memory.charged_bytes()), (50 * KIB, 50 * KIB));
        let _other = client.charge(50 * KIB);
        let refused = client.charge_response(vec![b'x'; 60 * KIB].into_response());
        assert_eq!(refused.status(), 503);
        assert_eq!(refused.headers()["retry-after"], "1");
        drop(bytes);
        assert_eq!(memory.charged_bytes(), 0);
    }
}
