//! The scenarios: who connects, who publishes what to whom, and what is reported.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};
use mqtt::QoS;

use crate::broker_cost::{self, Cost};
use crate::client::{Client, OUTPUT_MAX, Received};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// All publishers' messages go to every subscriber.
    FanOut,
    /// Each publisher has one subscriber.
    Pairs,
    /// Connections that do nothing.
    Idle,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub scenario: Scenario,
    pub broker: SocketAddr,
    pub pid: Option<u32>,
    pub duration: Duration,
    pub publishers: usize,
    pub subscribers: usize,
    pub pairs: usize,
    pub connections: usize,
    pub payload_bytes: usize,
    pub qos: QoS,
    /// Unacknowledged messages per publisher.
    pub window: usize,
    /// Messages per second over all publishers; `None` for as many as the broker takes.
    pub rate: Option<f64>,
}

struct Fleet {
    poll: Poll,
    clients: Vec<Client>,
    totals: Received,
    buffer: Vec<u8>,
    touched: Vec<usize>,
}

/// Connections without CONNACK at the same time. More than a broker's backlog (100 with Mosquitto) and the kernel drops
/// some, which then come back a second later: that would measure the retransmission timer.
const CONNECTING_MAX: u64 = 64;

/// Before the measurement begins.
const WARM_UP: Duration = Duration::from_secs(1);

pub fn run(options: &Options) -> Result<(), String> {
    let words = |e: io::Error| e.to_string();
    let mut fleet = Fleet::new().map_err(words)?;
    let before = cost(options)?;
    match options.scenario {
        Scenario::Idle => idle(&mut fleet, options, before).map_err(words),
        Scenario::FanOut => {
            let first = options.subscribers;
            fleet.connect_all(options, first + options.publishers).map_err(words)?;
            fleet
                .subscribe_all(first, options.qos, |_| "load/#".into())
                .map_err(words)?;
            measure(&mut fleet, options, first, options.publishers, |n| format!("load/{n}"))
        }
        Scenario::Pairs => {
            let n = options.pairs;
            fleet.connect_all(options, 2 * n).map_err(words)?;
            fleet
                .subscribe_all(n, options.qos, |i| format!("load/{i}/+"))
                .map_err(words)?;
            measure(&mut fleet, options, n, n, |i| format!("load/{i}/x"))
        }
    }
}

fn cost(options: &Options) -> Result<Cost, String> {
    options.pid.map_or(Ok(Cost::default()), broker_cost::of)
}

fn idle(fleet: &mut Fleet, options: &Options, before: Cost) -> io::Result<()> {
    let start = Instant::now();
    fleet.connect_all(options, options.connections)?;
    let took = start.elapsed();
    let after = cost(options).map_err(io::Error::other)?;
    let each = (after.resident_bytes.saturating_sub(before.resident_bytes)) as f64 / options.connections as f64;
    println!(
        "idle: {} connections in {:.2} s ({:.0}/s); resident {:.1} MiB before, {:.1} MiB after: {each:.0} bytes each",
        options.connections,
        took.as_secs_f64(),
        options.connections as f64 / took.as_secs_f64(),
        before.resident_bytes as f64 / 1048576.0,
        after.resident_bytes as f64 / 1048576.0,
    );
    let end = Instant::now() + options.duration;
    while Instant::now() < end {
        fleet.turn(Duration::from_millis(200))?;
    }
    Ok(())
}

/// Publishes from the clients `first..first + publishers` for the time asked for and reports.
fn measure(
    fleet: &mut Fleet,
    options: &Options,
    first: usize,
    publishers: usize,
    topic: impl Fn(usize) -> String,
) -> Result<(), String> {
    let topics: Vec<String> = (0..publishers).map(topic).collect();
    let payload = vec![b'x'; options.payload_bytes];
    let words = |e: io::Error| e.to_string();
    let start = Instant::now();
    let mut made = 0u64;
    let mut begin: Option<(Instant, Received, Cost, u64)> = None;
    loop {
        let elapsed = start.elapsed();
        if begin.is_none() && elapsed >= WARM_UP {
            begin = Some((Instant::now(), fleet.totals, cost(options)?, made));
        }
        if elapsed >= WARM_UP + options.duration {
            break;
        }
        made += fleet
            .offer(options, first, &topics, &payload, made, elapsed)
            .map_err(words)?;
        let wait = if options.rate.is_some() {
            Duration::from_millis(1)
        } else {
            Duration::ZERO
        };
        fleet.turn(wait).map_err(words)?;
    }
    let (began, was, cost_before, made_before) = begin.expect("the duration is longer than nothing");
    let seconds = began.elapsed().as_secs_f64();
    let cost_after = cost(options)?;
    let deliveries = fleet.totals.publishes - was.publishes;
    let cpu = (cost_after.cpu - cost_before.cpu).as_secs_f64();
    println!(
        "{:?}: {:.0} published/s, {:.0} delivered/s, {:.0} acknowledged/s; broker {:.2} cores, {:.3} CPU s per million deliveries, {:.1} MiB",
        options.scenario,
        (made - made_before) as f64 / seconds,
        deliveries as f64 / seconds,
        (fleet.totals.acknowledgements - was.acknowledgements) as f64 / seconds,
        cpu / seconds,
        cpu / (deliveries.max(1) as f64 / 1e6),
        cost_after.resident_bytes as f64 / 1048576.0,
    );
    Ok(())
}

impl Fleet {
    fn new() -> io::Result<Fleet> {
        Ok(Fleet {
            poll: Poll::new()?,
            clients: Vec::new(),
            totals: Received::default(),
            buffer: vec![0; 256 * 1024],
            touched: Vec::new(),
        })
    }

    fn connect_all(&mut self, options: &Options, n: usize) -> io::Result<()> {
        let run = std::process::id();
        for i in 0..n {
            let mut client = Client::connect(options.broker, &format!("load-{run}-{i}"))?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut client.socket, Token(i), interest)?;
            client.flush()?;
            self.clients.push(client);
            self.until(|totals| totals.connacks + CONNECTING_MAX > i as u64)?;
        }
        self.until(|totals| totals.connacks >= n as u64)
    }

    fn subscribe_all(&mut self, n: usize, qos: QoS, filter: impl Fn(usize) -> String) -> io::Result<()> {
        for i in 0..n {
            self.clients[i].subscribe(&filter(i), qos);
            self.clients[i].flush()?;
        }
        self.until(|totals| totals.subacks >= n as u64)
    }

    fn until(&mut self, done: impl Fn(&Received) -> bool) -> io::Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        while !done(&self.totals) {
            self.turn(Duration::from_millis(100))?;
            if Instant::now() > end {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the broker does not answer"));
            }
        }
        Ok(())
    }

    /// Lets every publisher send what it may now. Returns how many messages were made.
    fn offer(
        &mut self,
        options: &Options,
        first: usize,
        topics: &[String],
        payload: &[u8],
        made: u64,
        elapsed: Duration,
    ) -> io::Result<u64> {
        let allowed = match options.rate {
            Some(rate) => ((elapsed.as_secs_f64() * rate) as u64).saturating_sub(made),
            None => u64::MAX,
        };
        let mut sent = 0;
        for (n, topic) in topics.iter().enumerate() {
            // With a rate, publishers take turns.
            let n = if options.rate.is_some() {
                (made as usize + n) % topics.len()
            } else {
                n
            };
            let topic = if options.rate.is_some() { &topics[n] } else { topic };
            let client = &mut self.clients[first + n];
            let burst = if options.rate.is_some() { 1 } else { 64 };
            for _ in 0..burst {
                let is_full = match options.qos {
                    QoS::AtMostOnce => client.queued() > OUTPUT_MAX / 16,
                    _ => client.unacknowledged >= options.window,
                };
                if is_full || sent >= allowed {
                    break;
                }
                client.publish(topic, payload, options.qos);
                sent += 1;
            }
            client.flush()?;
        }
        Ok(sent)
    }

    /// Handles what is ready.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        let mut events = Events::with_capacity(4096);
        match self.poll.poll(&mut events, Some(wait)) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &events {
            let Token(i) = event.token();
            let client = &mut self.clients[i];
            if event.is_writable() {
                client.is_writable = true;
            }
            if event.is_readable() {
                let got = client.read(&mut self.buffer)?;
                self.totals.publishes += got.publishes;
                self.totals.acknowledgements += got.acknowledgements;
                self.totals.connacks += got.connacks;
                self.totals.subacks += got.subacks;
            }
            self.touched.push(i);
        }
        for i in self.touched.drain(..) {
            self.clients[i].flush()?;
        }
        Ok(())
    }
}
