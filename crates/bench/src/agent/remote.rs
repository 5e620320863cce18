//! The driver for an agent on another machine.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::clock::Estimate;
use super::line::{BYTES_MAX, LineStream};
use super::proof::SharedSecret;
use super::{FromAgent, ToAgent, VERSION};
use crate::driver::{Driver, DriverCommand, DriverEvent};
use crate::orchestrator::RunDriver;
use crate::plan::DriverSettings;
use crate::result::Agent;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence after which an agent counts as lost; it sends a message every two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const PINGS: u32 = 100;

pub struct RemoteDriver {
    name: String,
    lines: LineStream,
    origin: Instant,
    last_received: Instant,
    /// Events that arrived while waiting for pongs.
    events: VecDeque<DriverEvent>,
    pub cores: u16,
    clock: Option<Estimate>,
}

impl RemoteDriver {
    /// Connects to an agent and joins it. `origin` is time 0 of the run clock.
    pub fn connect(address: &str, token: &SharedSecret, origin: Instant) -> Result<RemoteDriver, String> {
        let fail = |error: &dyn std::fmt::Display| format!("agent {address}: {error}");
        let found = address.to_socket_addrs().map_err(|error| fail(&error))?;
        let (mut stream, mut last) = (None, "no such host".to_string());
        for socket in found {
            match TcpStream::connect_timeout(&socket, CONNECT_TIMEOUT) {
                Ok(connected) => {
                    stream = Some((connected, socket));
                    break;
                }
                Err(error) => last = error.to_string(),
            }
        }
        let (stream, socket) = stream.ok_or_else(|| fail(&last))?;
        let mut remote = RemoteDriver {
            name: address.into(),
            lines: LineStream::new(stream).map_err(|error| fail(&error))?,
            origin,
            last_received: Instant::now(),
            events: VecDeque::new(),
            cores: 0,
            clock: None,
        };
        remote.join(token, socket).map_err(|error| fail(&error))?;
        Ok(remote)
    }

    fn join(&mut self, token: &SharedSecret, socket: SocketAddr) -> Result<(), String> {
        let hello = match self.lines.receive(CONNECT_TIMEOUT)? {
            Some(FromAgent::Hello(hello)) => hello,
            Some(_) => return Err("is not an agent of tidewire".into()),
            None => return Err("does not answer; it may be busy with another run".into()),
        };
        if hello.version != VERSION {
            let theirs = hello.version;
            return Err(format!(
                "the agent has protocol version {theirs}, this process {VERSION}; use the same version of tidewire on all machines"
            ));
        }
        if token.is_empty() && SharedSecret::is_needed_at(socket.ip()) {
            return Err("the agent is on another machine; set --token-file".into());
        }
        let proof = token.prove(&hello.nonce);
        self.lines.send(&ToAgent::Join {
            version: VERSION,
            proof,
        })?;
        self.cores = hello.cores;
        match self.lines.receive(CONNECT_TIMEOUT)? {
            Some(FromAgent::Welcome) => {
                self.lines.bytes_max = BYTES_MAX;
                Ok(())
            }
            Some(FromAgent::Refused(reason)) => Err(format!("refused: {reason}")),
            _ => Err("did not answer the join request".into()),
        }
    }

    /// Measures the run clock minus the agent's clock.
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
            match self.lines.receive(CONNECT_TIMEOUT)? {
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

/// Connects to an agent, measures its clock and returns it ready for a job.
pub fn member(address: &str, token: &SharedSecret, origin: Instant, threads: Option<u16>) -> Result<RunDriver, String> {
    let mut remote = RemoteDriver::connect(address, token, origin)?;
    let clock = remote
        .measure_clock()
        .map_err(|error| format!("agent {address}: {error}"))?;
    Ok(RunDriver {
        settings: DriverSettings {
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

impl Driver for RemoteDriver {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&mut self, command: DriverCommand) -> Result<(), String> {
        self.lines.send(&ToAgent::Command(command))
    }

    fn event(&mut self, timeout: Duration) -> Result<Option<DriverEvent>, String> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let message = self.lines.receive(timeout)?;
        if message.is_none() && self.last_received.elapsed() > SILENCE_MAX {
            return Err(format!("has sent nothing for {} s", SILENCE_MAX.as_secs()));
        }
        if message.is_some() {
            self.last_received = Instant::now();
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
