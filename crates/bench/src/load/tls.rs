//! TLS of the connections: trusted certificates and session tickets.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, NamedGroup};
use trust::{ClientTls, Trust};

use crate::target::TargetTls;

/// Most tickets per host; the oldest is dropped first.
const TICKETS_MAX: usize = 100_000;

pub fn config(tls: &TargetTls) -> Result<Arc<ClientConfig>, String> {
    let client = ClientTls {
        trust: Trust::of(tls.ca_file.as_deref(), !tls.is_insecure),
        cert_file: tls.cert_file.as_deref(),
        key_file: tls.key_file.as_deref(),
        versions: rustls::ALL_VERSIONS,
    };
    let mut config = client.config().map_err(|problem| format!("TLS: {problem}"))?;
    config.resumption = match tls.resumes {
        true => Resumption::store(Arc::new(Tickets::default())),
        false => Resumption::disabled(),
    };
    Ok(Arc::new(config))
}

/// Stores one ticket per connection, as a fleet of devices does; rustls' own store keeps eight per host.
#[derive(Debug, Default)]
struct Tickets(Mutex<HashMap<ServerName<'static>, HostSessions>>);

#[derive(Debug, Default)]
struct HostSessions {
    hint: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tls13: VecDeque<Tls13ClientSessionValue>,
}

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, HashMap<ServerName<'static>, HostSessions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.lock().entry(server_name).or_default().hint = Some(group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().get(server_name)?.hint
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.lock().entry(server_name).or_default().tls12 = Some(value);
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock().get(server_name)?.tls12.clone()
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        if let Some(host) = self.lock().get_mut(server_name) {
            host.tls12 = None;
        }
    }

    fn insert_tls13_ticket(&self, server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut hosts = self.lock();
        let tickets = &mut hosts.entry(server_name).or_default().tls13;
        if tickets.len() >= TICKETS_MAX {
            tickets.pop_front();
        }
        tickets.push_back(value);
    }

    fn take_tls13_ticket(&self, server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().get_mut(server_name)?.tls13.pop_back()
    }
}
