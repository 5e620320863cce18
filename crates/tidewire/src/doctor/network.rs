//! Ports of the listeners and of the API, and their certificates.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jiff::{Timestamp, ToSpan};
use net::tls::CertificateOrigin;

use super::Finding;
use crate::config::Config;
use crate::config::address::Bind;
use crate::config::files::tls_files_by_label;
use crate::config::options::server::DurabilityPolicy;

/// As the alarm `certificate:<listener>`.
const CERTIFICATE_WARNING_DAYS: i64 = 14;

/// Lock file of a directory of the server, as `storage::StorageDirectory` has it.
const LOCK_NAME: &str = "lock";

/// Returns the findings, and the process of the server if one listens on a port of this configuration.
pub fn ports(config: &Config) -> (Vec<Finding>, Option<u32>) {
    let listeners = config.listeners.iter().map(|listener| {
        let key = format!("listeners.{}.bind", listener.label());
        (key, &listener.options.bind)
    });
    let api = config.api_bind().map(|bind| ("api.bind".to_owned(), bind));
    let platform = config.platform_bind().map(|bind| ("platform.bind".to_owned(), bind));
    let mut server = None;
    let findings = listeners
        .chain(api)
        .chain(platform)
        .map(|(key, bind)| port(&key, bind, config, &mut server))
        .collect();
    (findings, server)
}

fn port(key: &str, bind: &Bind, config: &Config, server: &mut Option<u32>) -> Finding {
    let address = match bind.resolve(key) {
        Ok(address) => address,
        Err(error) => return Finding::error("port", error, "ip address    # lists the addresses of this machine"),
    };
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok("port", format!("{address} is free ({key})")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => used_port(key, address, config, server),
        Err(error) => unusable_port(key, address, &error),
    }
}

fn used_port(key: &str, address: SocketAddr, config: &Config, server: &mut Option<u32>) -> Finding {
    let port = address.port();
    let data_dir = &config.data_dir;
    let has_journal = config.durability.policy != DurabilityPolicy::Memory;
    match net::find_port_owner(address) {
        Some(owner) if is_server_of(data_dir, owner.pid) => {
            *server = Some(owner.pid);
            Finding::ok(
                "port",
                format!("{address} is used by tidewire, process {} ({key})", owner.pid),
            )
        }
        Some(owner) if !has_journal && is_tidewire(owner.pid) => Finding::warning(
            "port",
            format!(
                "{address} is used by {owner}. Without a journal, it is not known whether that is the server of {} ({key})",
                data_dir.display()
            ),
            format!(
                "ps -fp {}    # has it this configuration? Else choose another port",
                owner.pid
            ),
        ),
        Some(owner) => Finding::error(
            "port",
            format!(
                "{address} is used by {owner}, which is not the server of {} ({key})",
                data_dir.display()
            ),
            format!(
                "kill {}    # or choose another port: {key} = \"ADDRESS:PORT\"",
                owner.pid
            ),
        ),
        None => Finding::warning(
            "port",
            format!("{address} is used by a process of another user ({key})"),
            format!("sudo ss -ltnp 'sport = :{port}'    # is it tidewire? Else choose another port"),
        ),
    }
}

fn is_tidewire(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim() == "tidewire")
}

/// Returns whether a process has a lock file of this data directory open. The server holds the locks of its stores,
/// such as `journal/lock`, as long as it runs. Without a journal, it can be without a lock.
fn is_server_of(data_dir: &Path, pid: u32) -> bool {
    let file = |about: Metadata| (about.dev(), about.ino());
    let stores = fs::read_dir(data_dir).into_iter().flatten().flatten();
    let locks: Vec<_> = stores
        .filter_map(|store| fs::metadata(store.path().join(LOCK_NAME)).ok().map(file))
        .collect();
    // The link of an open file can name another path, as in a container. The file is the same.
    let mut open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.any(|open| fs::metadata(open.path()).is_ok_and(|about| locks.contains(&file(about))))
}

fn unusable_port(key: &str, address: SocketAddr, error: &io::Error) -> Finding {
    let repair = match error.kind() {
        ErrorKind::PermissionDenied => {
            "sudo setcap cap_net_bind_service=+ep $(command -v tidewire)    # ports below 1024".to_owned()
        }
        ErrorKind::AddrNotAvailable => "ip address    # lists the addresses of this machine".to_owned(),
        _ => format!("choose another address: {key} = \"ADDRESS:PORT\""),
    };
    Finding::error("port", format!("cannot listen on {address} ({key}): {error}"), repair)
}

/// The configuration has been loaded, so the files exist and are usable.
pub fn certificates(config: &Config) -> Vec<Finding> {
    let now = Timestamp::now();
    let mut findings = Vec::new();
    for (label, files) in tls_files_by_label(config) {
        if files.awaits_certificate() {
            let text = format!("{label} has no certificate yet: tls.acme has not obtained one");
            let repair = "journalctl -u tidewire -g certificate    # says why";
            findings.push(Finding::warning("certificate", text, repair));
            continue;
        }
        let file = files.certificate.display();
        let chain = net::tls::certificates(&files.certificate).unwrap_or_default();
        let described = chain.first().and_then(|der| net::certificate::describe(der));
        findings.push(match described {
            // The server renews it in time.
            Some(described) if files.origin == CertificateOrigin::Acme && at(described.not_after_unix_s) > now => {
                let end = at(described.not_after_unix_s);
                Finding::ok(
                    "certificate",
                    format!("{file} ({label}) is valid until {end}, renewed by tls.acme"),
                )
            }
            Some(described) => certificate(
                now,
                &format!("{file} ({label})"),
                described.not_before_unix_s,
                described.not_after_unix_s,
            ),
            None => Finding::warning(
                "certificate",
                format!("{file} ({label}): its dates cannot be read"),
                format!("openssl x509 -noout -dates -in {file}"),
            ),
        });
    }
    findings
}

fn at(unix_s: i64) -> Timestamp {
    Timestamp::from_second(unix_s).unwrap_or(Timestamp::MAX)
}

fn certificate(now: Timestamp, name: &str, not_before_s: i64, not_after_s: i64) -> Finding {
    const RENEW: &str = "renew the certificate, then: sudo systemctl reload tidewire";
    let (begin, end) = (at(not_before_s), at(not_after_s));
    let warn_from = end
        .saturating_sub((CERTIFICATE_WARNING_DAYS * 24).hours())
        .unwrap_or(end);
    if now < begin {
        let text = format!("{name} is not valid before {begin}");
        return Finding::error("certificate", text, "date    # is the clock right?");
    }
    match now {
        _ if now >= end => Finding::error("certificate", format!("{name} has expired at {end}"), RENEW),
        _ if now >= warn_from => Finding::warning("certificate", format!("{name} expires at {end}"), RENEW),
        _ => Finding::ok("certificate", format!("{name} is valid until {end}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn server_is_known_by_its_lock() {
        let name = format!("tidewire-doctor-lock-{}", std::process::id());
        let data_dir = std::env::temp_dir().join(name);
        fs::create_dir_all(data_dir.join("journal")).expect("a directory");
        let lock = fs::File::create(data_dir.join("journal/lock")).expect("a lock file");
        let pid = std::process::id();
        assert!(is_server_of(&data_dir, pid));
        assert!(!is_server_of(&data_dir.join("journal"), pid));
        drop(lock);
        assert!(!is_server_of(&data_dir, pid));
        fs::remove_dir_all(&data_dir).expect("removed");
    }

    #[test]
    fn certificates_are_judged_by_their_dates() {
        let day = 24 * 60 * 60;
        let now = Timestamp::from_second(1_000 * day).expect("a date in 1972");
        for (from, to, expected) in [
            (999, 1_015, Level::Ok),
            (999, 1_014, Level::Warning),
            (999, 1_001, Level::Warning),
            (999, 1_000, Level::Error),
            (1_001, 1_100, Level::Error),
        ] {
            let finding = certificate(now, "server.pem", from * day, to * day);
            assert_eq!(finding.level, expected, "{finding}");
        }
    }
}
