//! Admission of HTTP connections, so that no client can keep the others or the health checks out.
//!
//! The connections of a listener are limited, and so are those from one address. If a limit is reached, the server
//! closes a connection without a request to admit the new one: first those that have not sent a request yet, then those
//! that have waited for their next request for a while. Among these it takes the oldest of the address with the most
//! connections. If all connections have a request in progress, the new one gets a reserved slot. It can only make
//! health checks; other requests get 503.
//!
//! A connection with a request in progress is never closed for another one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use net::client_network;
use tokio::sync::Notify;

/// Connections for health checks beyond the limit.
pub const RESERVED_MAX: usize = 4;
/// Paths that a reserved connection may request. They do not count against the limit of concurrent requests.
const HEALTH_PATHS: [&str; 3] = ["/livez", "/readyz", "/status"];
/// How long a connection must have waited for its next request before it can be closed for another one. By then its
/// client has received the end of the answer.
const IDLE_MIN: Duration = Duration::from_secs(1);

pub(crate) fn is_health_check(path: &str) -> bool {
    HEALTH_PATHS.contains(&path)
}

/// The connections of a listener.
pub(crate) struct ConnectionSlots {
    max: usize,
    per_address_max: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    next: ConnectionNumber,
    /// In the order of their numbers, and thus of their age.
    by_number: BTreeMap<ConnectionNumber, OpenConnection>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct ConnectionNumber(u64);

struct OpenConnection {
    network: IpAddr,
    is_reserved: bool,
    activity: ConnectionActivity,
    evicted: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionActivity {
    NoRequestYet,
    InRequest,
    IdleSince(Instant),
}

/// The place of one connection. Dropping it frees the place.
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: ConnectionNumber,
    is_reserved: bool,
    evicted: Arc<Notify>,
}

impl ConnectionSlots {
    pub(crate) fn new(max: usize, per_address_max: usize) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots {
            max,
            per_address_max,
            open: Mutex::default(),
        })
    }

    /// Returns the slot of a new connection. `None`: even the reserved slots are in use.
    pub(crate) fn admit(self: &Arc<ConnectionSlots>, peer: IpAddr, now: Instant) -> Option<ConnectionSlot> {
        let network = client_network(peer);
        let mut open = self.lock();
        let has_place = if open.count(|other| !other.is_reserved && other.network == network) >= self.per_address_max {
            open.evict(|other| !other.is_reserved && other.network == network, now, IDLE_MIN)
        } else if open.count(|other| !other.is_reserved) >= self.max {
            open.evict(|other| !other.is_reserved, now, IDLE_MIN)
        } else {
            true
        };
        let has_reserved_place = has_place
            || open.count(|other| other.is_reserved) < RESERVED_MAX
            || open.evict(|other| other.is_reserved, now, Duration::ZERO);
        if !has_reserved_place {
            return None;
        }
        let number = open.next;
        open.next = ConnectionNumber(number.0 + 1);
        let evicted = Arc::new(Notify::new());
        let connection = OpenConnection {
            network,
            is_reserved: !has_place,
            activity: ConnectionActivity::NoRequestYet,
            evicted: evicted.clone(),
        };
        open.by_number.insert(number, connection);
        Some(ConnectionSlot {
            slots: self.clone(),
            number,
            is_reserved: !has_place,
            evicted,
        })
    }

    // Every update leaves the map valid, so a panic cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    fn count(&self, is_counted: impl Fn(&OpenConnection) -> bool) -> usize {
        self.by_number
            .values()
            .filter(|connection| is_counted(connection))
            .count()
    }

    /// Closes a connection without a request, if one of the candidates has none.
    fn evict(&mut self, is_candidate: impl Fn(&OpenConnection) -> bool, now: Instant, idle_min: Duration) -> bool {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for connection in self.by_number.values() {
            *counts.entry(connection.network).or_default() += 1;
        }
        let candidates = self.by_number.iter().filter(|(_, connection)| is_candidate(connection));
        let ranked = candidates.filter_map(|(number, connection)| {
            let rank = match connection.activity {
                ConnectionActivity::NoRequestYet => 1,
                ConnectionActivity::IdleSince(since) if now.saturating_duration_since(since) >= idle_min => 0,
                ConnectionActivity::IdleSince(_) | ConnectionActivity::InRequest => return None,
            };
            Some((rank, counts[&connection.network], std::cmp::Reverse(*number)))
        });
        let Some((_, _, std::cmp::Reverse(number))) = ranked.max() else {
            return false;
        };
        if let Some(connection) = self.by_number.remove(&number) {
            connection.evicted.notify_one();
        }
        true
    }
}

impl ConnectionSlot {
    /// Whether the connection can only make health checks.
    pub(crate) fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    /// Returns when the connection must be closed for another one.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Marks the start of a request. `None`: the connection is being closed for another one.
    pub(crate) fn begin_request(&self) -> Option<RequestInProgress> {
        let mut open = self.slots.lock();
        open.by_number.get_mut(&self.number)?.activity = ConnectionActivity::InRequest;
        Some(RequestInProgress {
            slots: self.slots.clone(),
            number: self.number,
        })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.lock().by_number.remove(&self.number);
    }
}

/// A request in progress, until it is dropped.
pub(crate) struct RequestInProgress {
    slots: Arc<ConnectionSlots>,
    number: ConnectionNumber,
}

impl RequestInProgress {
    /// Returns the body of the answer. The request ends when hyper has taken all of the body.
    pub(crate) fn until_end_of(self, body: Body) -> Body {
        Body::new(AnswerBody { body, _request: self })
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        if let Some(connection) = self.slots.lock().by_number.get_mut(&self.number) {
            connection.activity = ConnectionActivity::IdleSince(Instant::now());
        }
    }
}

struct AnswerBody {
    body: Body,
    _request: RequestInProgress,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
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

    const NORTH: &str = "192.0.2.1";
    const SOUTH: &str = "192.0.2.2";

    fn admit(slots: &Arc<ConnectionSlots>, peer: &str) -> Option<ConnectionSlot> {
        slots.admit(peer.parse().unwrap(), Instant::now())
    }

    fn admit_with_request(slots: &Arc<ConnectionSlots>, peer: &str) -> (ConnectionSlot, RequestInProgress) {
        let slot = admit(slots, peer).unwrap();
        let request = slot.begin_request().unwrap();
        (slot, request)
    }

    fn is_open(slot: &ConnectionSlot) -> bool {
        slot.slots.lock().by_number.contains_key(&slot.number)
    }

    #[test]
    fn connections_without_a_request_are_closed_first() {
        let slots = ConnectionSlots::new(4, 4);
        let busy = admit_with_request(&slots, NORTH);
        let (idle, request) = admit_with_request(&slots, NORTH);
        drop(request);
        let first = admit(&slots, NORTH).unwrap();
        let second = admit(&slots, SOUTH).unwrap();
        let third = admit(&slots, SOUTH).unwrap();
        assert!(!third.is_reserved());
        assert!(
            !is_open(&first),
            "the address with the most connections loses its oldest"
        );
        assert!(is_open(&second) && is_open(&idle) && is_open(&busy.0));
        assert!(
            first.begin_request().is_none(),
            "an evicted connection starts no request"
        );
        let later = Instant::now() + IDLE_MIN;
        for slot in [&second, &third] {
            std::mem::forget(slot.begin_request());
        }
        let fourth = slots.admit(SOUTH.parse().unwrap(), later).unwrap();
        assert!(!fourth.is_reserved() && !is_open(&idle), "then an idle connection");
        std::mem::forget(fourth.begin_request());
        let health = slots.admit(SOUTH.parse().unwrap(), later).unwrap();
        assert!(health.is_reserved() && is_open(&busy.0), "a request in progress stays");
    }

    #[test]
    fn connection_that_has_just_answered_stays() {
        let slots = ConnectionSlots::new(1, 1);
        let (idle, request) = admit_with_request(&slots, NORTH);
        drop(request);
        assert!(admit(&slots, SOUTH).unwrap().is_reserved());
        assert!(is_open(&idle));
    }

    #[test]
    fn address_cannot_take_all_connections() {
        let slots = ConnectionSlots::new(4, 2);
        let _busy = [admit_with_request(&slots, NORTH), admit_with_request(&slots, NORTH)];
        assert!(admit(&slots, NORTH).unwrap().is_reserved());
        let south = admit(&slots, SOUTH).unwrap();
        assert!(!south.is_reserved());
        // Networks of IPv6 customers have 64 bits.
        let mut customer = Vec::new();
        let slots = ConnectionSlots::new(4, 2);
        for host in 1..=3 {
            let slot = admit(&slots, &format!("2001:db8::{host}")).unwrap();
            std::mem::forget(slot.begin_request());
            customer.push(slot);
        }
        assert!(customer[2].is_reserved());
        assert!(!admit(&slots, "2001:db8:0:1::1").unwrap().is_reserved());
    }

    #[test]
    fn reserved_slots_are_for_the_newest_connections() {
        let slots = ConnectionSlots::new(1, 1);
        let _busy = admit_with_request(&slots, NORTH);
        let waiting: Vec<_> = (0..RESERVED_MAX).map(|_| admit(&slots, NORTH).unwrap()).collect();
        let health = admit(&slots, SOUTH).unwrap();
        assert!(health.is_reserved() && !is_open(&waiting[0]) && is_open(&waiting[1]));
        let requests: Vec<_> = waiting[1..].iter().map(|slot| slot.begin_request().unwrap()).collect();
        let _request = health.begin_request().unwrap();
        assert!(admit(&slots, SOUTH).is_none(), "all reserved slots answer");
        drop(requests);
        assert!(admit(&slots, SOUTH).is_some());
    }
}
