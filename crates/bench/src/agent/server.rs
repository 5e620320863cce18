//! The agent: serves one orchestrator after the other and controls a driver in this process by its commands.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::line::{BYTES_MAX, LineStream};
use super::proof::{SharedSecret, nonce};
use super::{FromAgent, Hello, ToAgent, VERSION};
use crate::driver::{Driver, DriverCommand, DriverEvent};
use crate::load::LocalDriver;
use crate::orchestrator::StopFlag;
use crate::{machine, plan};

/// Time limit for each step of the greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
const TURN: Duration = Duration::from_millis(5);
const ALIVE_EVERY: Duration = Duration::from_secs(2);
const ACCEPT_EVERY: Duration = Duration::from_millis(50);

/// Serves orchestrators until it is stopped. `log` gets a line when a session ends.
pub fn serve(
    listener: &TcpListener,
    token: &SharedSecret,
    stop: &StopFlag,
    log: &mut dyn FnMut(String),
) -> Result<(), String> {
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    while !stop.is_requested() {
        match listener.accept() {
            Ok((stream, peer)) => {
                let ended = session(stream, token, stop);
                log(format!("{peer}: {}", ended.err().unwrap_or("done".into())));
            }
            // Also for passing failures: an aborted connection, too many open files.
            Err(_) => std::thread::sleep(ACCEPT_EVERY),
        }
    }
    Ok(())
}

pub fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).map_err(|error| format!("{address}: {error}"))
}

/// Serves one orchestrator. When the session ends, the driver and all its connections end too.
fn session(stream: TcpStream, token: &SharedSecret, stop: &StopFlag) -> Result<(), String> {
    stream.set_nonblocking(false).map_err(|error| error.to_string())?;
    let mut lines = LineStream::new(stream).map_err(|error| error.to_string())?;
    authenticate(&mut lines, token)?;
    lines.bytes_max = BYTES_MAX;
    let origin = Instant::now();
    let mut driver = LocalDriver::new("agent", origin);
    let mut has_job = false;
    let mut last_sent = Instant::now();
    while !stop.is_requested() {
        // With a job, `event` below waits, so that messages and events are both checked often. Without one, pings are
        // answered at once.
        let timeout = if has_job { Duration::ZERO } else { TURN };
        match lines.receive(timeout) {
            Ok(None) => {}
            Ok(Some(ToAgent::Ping { ping })) => {
                let clock_ns = origin.elapsed().as_nanos() as u64;
                lines.send(&FromAgent::Pong { ping, clock_ns })?;
            }
            Ok(Some(ToAgent::Command(command))) => {
                has_job = true;
                if let Err(reason) = execute(&mut driver, command) {
                    lines.send(&FromAgent::Event(DriverEvent::Failed(reason)))?;
                }
            }
            Ok(Some(ToAgent::Join { .. })) => return Err("the orchestrator joined twice".into()),
            Err(reason) if reason == "closed the connection" => return Ok(()),
            Err(reason) => return Err(reason),
        }
        if has_job {
            match driver.event(TURN) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    lines.send(&FromAgent::Event(event))?;
                    last_sent = Instant::now();
                }
                Err(reason) => lines.send(&FromAgent::Event(DriverEvent::Failed(reason)))?,
            }
        }
        if last_sent.elapsed() >= ALIVE_EVERY {
            lines.send(&FromAgent::Alive)?;
            last_sent = Instant::now();
        }
    }
    Ok(())
}

fn execute(driver: &mut LocalDriver, command: DriverCommand) -> Result<(), String> {
    let command = match command {
        DriverCommand::Connect(mut job) => {
            if job.threads == 0 {
                job.threads = cores();
            }
            plan::check_ports(&job)?;
            DriverCommand::Connect(job)
        }
        other => other,
    };
    driver.command(command)
}

fn cores() -> u16 {
    machine::cores().min(1024) as u16
}

fn authenticate(lines: &mut LineStream, token: &SharedSecret) -> Result<(), String> {
    let nonce = nonce()?;
    lines.send(&FromAgent::Hello(Hello {
        version: VERSION,
        nonce: nonce.clone(),
        cores: cores(),
        host: machine::describe().host,
    }))?;
    let refusal = match lines.receive(GREETING_TIMEOUT)? {
        Some(ToAgent::Join { version, .. }) if version != VERSION => {
            format!(
                "the agent has protocol version {VERSION}, the orchestrator {version}; use the same version of tidewire on all machines"
            )
        }
        Some(ToAgent::Join { proof, .. }) if !token.is_proven(&nonce, &proof) => {
            "the tokens differ; set the same --token-file on both sides".into()
        }
        Some(ToAgent::Join { .. }) => return lines.send(&FromAgent::Welcome),
        Some(_) | None => return Err("the orchestrator did not join".into()),
    };
    lines.send(&FromAgent::Refused(refusal.clone()))?;
    Err(refusal)
}
