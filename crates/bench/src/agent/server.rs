//! The agent: takes one orchestrator after the other and leads a driver of this process as it is told.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::line::{BYTES_MAX, Lines};
use super::proof::{Token, nonce};
use super::{FromAgent, Hello, ToAgent, VERSION};
use crate::driver::{Command, Driver, Event};
use crate::load::LocalDriver;
use crate::orchestrator::Stop;
use crate::{machine, plan};

/// For each step of the greeting.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);
const TURN: Duration = Duration::from_millis(5);
const ALIVE_EVERY: Duration = Duration::from_secs(2);
const ACCEPT_EVERY: Duration = Duration::from_millis(50);

/// Serves until it is stopped. `say` is told of what happens.
pub fn serve(listener: &TcpListener, token: &Token, stop: &Stop, say: &mut dyn FnMut(String)) -> Result<(), String> {
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    while !stop.is_wanted() {
        match listener.accept() {
            Ok((stream, peer)) => {
                let ended = session(stream, token, stop);
                say(format!("{peer}: {}", ended.err().unwrap_or("done".into())));
            }
            // Also what is over soon: an aborted connection, too many open files.
            Err(_) => std::thread::sleep(ACCEPT_EVERY),
        }
    }
    Ok(())
}

pub fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).map_err(|error| format!("{address}: {error}"))
}

/// One orchestrator. The driver goes with it, and so do all its connections.
fn session(stream: TcpStream, token: &Token, stop: &Stop) -> Result<(), String> {
    stream.set_nonblocking(false).map_err(|error| error.to_string())?;
    let mut lines = Lines::new(stream).map_err(|error| error.to_string())?;
    greet(&mut lines, token)?;
    lines.bytes_max = BYTES_MAX;
    let origin = Instant::now();
    let mut driver = LocalDriver::new("agent", origin);
    let mut has_job = false;
    let mut last_sent = Instant::now();
    while !stop.is_wanted() {
        // With a job the driver is waited for, so that both are looked at often; pings come before the job.
        let patience = if has_job { Duration::ZERO } else { TURN };
        match lines.receive(patience) {
            Ok(None) => {}
            Ok(Some(ToAgent::Ping { ping })) => {
                let clock_ns = origin.elapsed().as_nanos() as u64;
                lines.send(&FromAgent::Pong { ping, clock_ns })?;
            }
            Ok(Some(ToAgent::Command(command))) => {
                has_job = true;
                if let Err(reason) = obey(&mut driver, command) {
                    lines.send(&FromAgent::Event(Event::Failed(reason)))?;
                }
            }
            Ok(Some(ToAgent::Join { .. })) => return Err("joined twice".into()),
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
                Err(reason) => lines.send(&FromAgent::Event(Event::Failed(reason)))?,
            }
        }
        if last_sent.elapsed() >= ALIVE_EVERY {
            lines.send(&FromAgent::Alive)?;
            last_sent = Instant::now();
        }
    }
    Ok(())
}

fn obey(driver: &mut LocalDriver, command: Command) -> Result<(), String> {
    let command = match command {
        Command::Connect(mut job) => {
            if job.threads == 0 {
                job.threads = cores();
            }
            plan::check_ports(&job)?;
            Command::Connect(job)
        }
        other => other,
    };
    driver.command(command)
}

fn cores() -> u16 {
    machine::cores().min(1024) as u16
}

fn greet(lines: &mut Lines, token: &Token) -> Result<(), String> {
    let nonce = nonce()?;
    lines.send(&FromAgent::Hello(Hello {
        version: VERSION,
        nonce: nonce.clone(),
        cores: cores(),
        host: machine::describe().host,
    }))?;
    let refusal = match lines.receive(GREETING_PATIENCE)? {
        Some(ToAgent::Join { version, .. }) if version != VERSION => {
            format!("it speaks version {VERSION}, the orchestrator {version}; use the same tidewire everywhere")
        }
        Some(ToAgent::Join { proof, .. }) if !token.is_proven(&nonce, &proof) => {
            "the token is not the same (--token-file)".into()
        }
        Some(ToAgent::Join { .. }) => return lines.send(&FromAgent::Welcome),
        Some(_) | None => return Err("did not join".into()),
    };
    lines.send(&FromAgent::Refused(refusal.clone()))?;
    Err(refusal)
}
