//! `tidewire demo`: a server with simulated devices. The devices are created through the REST interface and send MQTT
//! over connections of their own, as real devices do. They are deleted when the server stops, or by `demo --remove`.

mod fleet;
mod rest;
mod simulation;

use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use clap::{Arg, ArgAction, Command};

use crate::client::target::ConnectTarget;
use crate::config::{Config, ConfigSources};
use crate::output::{EXIT_FAILURE, fail, print, print_error};
use crate::serve::{CompanionTask, LocalAddresses};
use rest::{DemoSession, PASSWORD, USER};

/// Where the data of a demonstration is, if nothing else says so: not with that of a real server.
const DATA_DIR: &str = "tidewire-demo";

pub fn command() -> Command {
    Command::new("demo")
        .about("Run a server with a fleet of simulated devices, their alarms and a dashboard")
        .arg(
            Arg::new("remove")
                .long("remove")
                .action(ArgAction::SetTrue)
                .help("Take the devices away that a demonstration has left in a server that runs"),
        )
}

/// The platform with its users, before everything that was typed.
pub fn add_users(sources: &mut ConfigSources) {
    let needed = ["platform.enabled=true".to_owned(), "platform.demo=true".to_owned()];
    sources.set.splice(0..0, needed);
}

/// Arguments of a demo.
pub fn prepare(sources: &mut ConfigSources) {
    add_users(sources);
    let sets_directory = sources.set.iter().any(|set| set.starts_with("node.data_dir="));
    if sources.file.is_none() && !sets_directory {
        sources.set.push(format!("node.data_dir={DATA_DIR}"));
    }
}

/// `demo --remove`.
pub fn remove(config: &Config) -> ExitCode {
    let scheme = match config.api_certificate() {
        Some(_) => "https",
        None => "http",
    };
    let url = format!("{scheme}://{}", config.api.bind);
    let removed = ConnectTarget::parse_api_url(&url)
        .and_then(DemoSession::log_in)
        .and_then(|session| fleet::remove(&session));
    match removed {
        Ok(count) => print(&format!("{count} simulated devices and their data are deleted\n")),
        Err(error) => fail(
            EXIT_FAILURE,
            &format!("the demonstration at {url} cannot be removed: {error}"),
        ),
    }
}

/// Runs the simulated devices while the server runs.
#[derive(Default)]
pub struct Demo {
    is_stopping: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Demo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Demo")
    }
}

impl CompanionTask for Demo {
    fn started(&self, at: &LocalAddresses) {
        let (Some(mqtt), Some(url)) = (at.mqtt, at.api_url.clone()) else {
            return print_error(&"the demonstration needs a listener of MQTT over TCP and the API");
        };
        let is_stopping = Arc::clone(&self.is_stopping);
        let run = move || {
            if let Err(error) = run(mqtt, &url, &is_stopping) {
                print_error(&format!("the demonstration has ended: {error}"));
            }
        };
        match thread::Builder::new().name("demo".into()).spawn(run) {
            Ok(thread) => *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread),
            Err(error) => print_error(&format!("no thread for the demonstration: {error}")),
        }
    }

    fn stopping(&self) {
        self.is_stopping.store(true, Relaxed);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.thread().unpark();
            // A panic has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

fn run(mqtt: SocketAddr, url: &str, is_stopping: &AtomicBool) -> Result<(), String> {
    let target = ConnectTarget::parse_api_url(url)?;
    let session = DemoSession::log_in(target.clone())?;
    // Deletes the entities of a demo that was killed.
    fleet::remove(&session)?;
    let devices = fleet::make(&session)?;
    print(&format!(
        "{} simulated devices report every second, and some raise alarms. Log in at {url} as {USER} with the password {PASSWORD}\n\
         for ThingsBoard's REST interface, for example:\n\n{}\n",
        devices.len(),
        examples(url)
    ));
    let ran = simulation::run(mqtt, devices, is_stopping);
    // Tokens expire before a demonstration that runs for long ends.
    let removed = DemoSession::log_in(target).and_then(|session| fleet::remove(&session));
    ran.and(removed.map(drop))
}

fn examples(url: &str) -> String {
    format!(
        "  T=$(curl -s {url}/api/auth/login -d '{{\"username\":\"{USER}\",\"password\":\"{PASSWORD}\"}}' -H 'Content-Type: application/json' | cut -d'\"' -f4)\n  \
         curl -s \"{url}/api/tenant/deviceInfos?pageSize=20&page=0\" -H \"X-Authorization: Bearer $T\"\n  \
         curl -s \"{url}/api/alarms?pageSize=20&page=0\" -H \"X-Authorization: Bearer $T\"\n"
    )
}
