//! The driver that is an agent on another machine.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::clock::Estimate;
use super::line::{BYTES_MAX, Lines};
use super::proof::Token;
use super::{FromAgent, ToAgent, VERSION};
use crate::driver::{Command, Driver, Event};
use crate::orchestrator::Member;
use crate::plan::Hand;
use crate::result::Agent;

const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// An agent that says nothing for so long is gone; it says something every two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const PINGS: u32 = 100;

pub struct Remote {
    name: String,
    lines: Lines,
    origin: Instant,
    heard: Instant,
    /// What came between pings.
    events: VecDeque<Event>,
    pub cores: u16,
    clock: Option<Estimate>,
}

impl Remote {
    /// `origin` is 0 on the run clock.
    pub fn connect(address: &str, token: &Token, origin: Instant) -> Result<Remote, String> {
        let fail = |error: &dyn std::fmt::Display| format!("agent {address}: {error}");
        let found = address.to_socket_addrs().map_err(|error| fail(&error))?;
        let (mut stream, mut last) = (None, "no such host".to_string());
        for socket in found {
            match TcpStream::connect_timeout(&socket, CONNECT_PATIENCE) {
                Ok(connected) => {
                    stream = Some((connected, socket));
                    break;
                }
                Err(error) => last = error.to_string(),
            }
        }
        let (stream, socket) = stream.ok_or_else(|| fail(&last))?;
        let mut remote = Remote {
            name: address.into(),
            lines: Lines::new(stream).map_err(|error| fail(&error))?,
            origin,
            heard: Instant::now(),
            events: VecDeque::new(),
            cores: 0,
            clock: None,
        };
        remote.join(token, socket).map_err(|error| fail(&error))?;
        Ok(remote)
    }

    fn join(&mut self, token: &Token, socket: SocketAddr) -> Result<(), String> {
        let hello = match self.lines.receive(CONNECT_PATIENCE)? {
            Some(FromAgent::Hello(hello)) => hello,
            Some(_) => return Err("is no agent of tidewire".into()),
            None => return Err("does not answer; it may have another run".into()),
        };
        if hello.version != VERSION {
            let theirs = hello.version;
            return Err(format!(
                "it speaks version {theirs}, this one {VERSION}; use the same tidewire everywhere"
            ));
        }
        if token.is_empty() && Token::is_needed_at(socket.ip()) {
            return Err("it is on another machine, so --token-file is needed".into());
        }
        let proof = token.prove(&hello.nonce);
        self.lines.send(&ToAgent::Join {
            version: VERSION,
            proof,
        })?;
        self.cores = hello.cores;
        match self.lines.receive(CONNECT_PATIENCE)? {
            Some(FromAgent::Welcome) => {
                self.lines.bytes_max = BYTES_MAX;
                Ok(())
            }
            Some(FromAgent::Refused(reason)) => Err(format!("refused: {reason}")),
            _ => Err("did not answer".into()),
        }
    }

    /// Run clock minus the agent's.
    pub fn measure_clock(&mut self) -> Result<Estimate, String> {
        let mut best: Option<Estimate> = None;
        for ping in 0..PINGS {
            let estimate = self.ping(ping)?;
            best = Some(best.map_or(estimate, |best| best.or(estimate)));
        }
        best.ok_or("there were no pings".into())
    }

    fn ping(&mut self, number: u32) -> Result<Estimate, String> {
        let sent_ns = self.origin.elapsed().as_nanos() as u64;
        self.lines.send(&ToAgent::Ping { ping: number })?;
        loop {
            match self.lines.receive(CONNECT_PATIENCE)? {
                Some(FromAgent::Pong { ping, clock_ns }) if ping == number => {
                    let received_ns = self.origin.elapsed().as_nanos() as u64;
                    return Ok(Estimate::of_round_trip(sent_ns, received_ns, clock_ns));
                }
                Some(FromAgent::Event(event)) => self.events.push_back(event),
                Some(_) => {}
                None => return Err("does not answer pings".into()),
            }
        }
    }
}

/// Ready to be given work: joined, and its clock known.
pub fn member(address: &str, token: &Token, origin: Instant, threads: Option<u16>) -> Result<Member, String> {
    let mut remote = Remote::connect(address, token, origin)?;
    let clock = remote
        .measure_clock()
        .map_err(|error| format!("agent {address}: {error}"))?;
    Ok(Member {
        hand: Hand {
            threads: threads.unwrap_or(remote.cores),
            clock_offset_ns: clock.offset_ns,
        },
        agent: Some(Agent {
            name: address.into(),
            clients: 0,
            clock_offset_ms: clock.offset_ns as f64 / 1e6,
            clock_error_ms: clock.error_ns as f64 / 1e6,
        }),
        driver: Box::new(remote),
    })
}

impl Driver for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&mut self, command: Command) -> Result<(), String> {
        self.lines.send(&ToAgent::Command(command))
    }

    fn event(&mut self, patience: Duration) -> Result<Option<Event>, String> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let message = self.lines.receive(patience)?;
        if message.is_none() && self.heard.elapsed() > SILENCE_MAX {
            return Err(format!("has said nothing for {} s", SILENCE_MAX.as_secs()));
        }
        if message.is_some() {
            self.heard = Instant::now();
        }
        match message {
            Some(FromAgent::Event(event)) => Ok(Some(event)),
            _ => Ok(None),
        }
    }

    fn clock_error_ns(&mut self) -> Option<u64> {
        let first = self.clock?;
        let later = self.measure_clock().ok()?;
        Some(first.error_with_drift(later))
    }
}
