//! Notifies systemd (`sd_notify`): one datagram with `KEY=value` lines to the socket in `NOTIFY_SOCKET`.
//!
//! Without that variable, every call does nothing. A failed notification is ignored, because it must not stop the
//! server.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

#[derive(Debug)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How often `watchdog` has to be called, if at all.
    watchdog_interval: Option<Duration>,
}

/// The variables systemd sets.
#[derive(Clone, Debug, Default)]
pub struct NotifyEnvironment {
    pub notify_socket: Option<std::ffi::OsString>,
    pub watchdog_usec: Option<String>,
    pub watchdog_pid: Option<String>,
}

impl NotifyEnvironment {
    pub fn of_process() -> NotifyEnvironment {
        NotifyEnvironment {
            notify_socket: std::env::var_os("NOTIFY_SOCKET"),
            watchdog_usec: std::env::var("WATCHDOG_USEC").ok(),
            watchdog_pid: std::env::var("WATCHDOG_PID").ok(),
        }
    }
}

impl Notifier {
    pub fn new(environment: &NotifyEnvironment) -> io::Result<Notifier> {
        let socket = match environment.notify_socket.as_deref() {
            Some(name) if !name.is_empty() => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                Some((socket, address(name.as_bytes())?))
            }
            _ => None,
        };
        Ok(Notifier {
            socket,
            watchdog_interval: watchdog_interval(environment),
        })
    }

    pub fn ready(&self) {
        self.send("READY=1");
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    pub fn watchdog(&self) {
        self.send("WATCHDOG=1");
    }

    /// One line for `systemctl status`.
    pub fn status(&self, text: &str) {
        self.send(&format!("STATUS={}", text.replace('\n', " ")));
    }

    /// Half of what systemd allows, as its manual advises.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog_interval
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::debug!(%error, message, "cannot notify systemd");
        }
    }
}

/// A path, or with `@` in front a name in the abstract namespace.
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    match name.strip_prefix(b"@") {
        Some(name) => abstract_address(name),
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
    }
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

fn watchdog_interval(environment: &NotifyEnvironment) -> Option<Duration> {
    let is_for_us = match &environment.watchdog_pid {
        Some(pid) => *pid == std::process::id().to_string(),
        None => true,
    };
    let usec: u64 = environment.watchdog_usec.as_ref()?.parse().ok()?;
    (is_for_us && usec > 0).then(|| Duration::from_micros(usec) / 2)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let size = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..size].to_vec()).unwrap()
    }

    #[test]
    fn messages_arrive_at_a_path_and_at_an_abstract_name() {
        let path = std::env::temp_dir().join(format!("tidewire-notify-{}", std::process::id()));
        let abstract_name = format!("tidewire-notify-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&abstract_address(abstract_name.as_bytes()).unwrap()).unwrap();
        for (socket, variable) in [
            (by_path, path.clone().into_os_string()),
            (by_name, format!("@{abstract_name}").into()),
        ] {
            let environment = NotifyEnvironment {
                notify_socket: Some(variable),
                ..NotifyEnvironment::default()
            };
            let notifier = Notifier::new(&environment).unwrap();
            notifier.ready();
            notifier.watchdog();
            notifier.status("two\nlines");
            notifier.stopping();
            let all: Vec<String> = (0..4).map(|_| received(&socket)).collect();
            assert_eq!(all, ["READY=1", "WATCHDOG=1", "STATUS=two lines", "STOPPING=1"]);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn without_systemd_nothing_happens() {
        let notifier = Notifier::new(&NotifyEnvironment::default()).unwrap();
        notifier.ready();
        assert_eq!(notifier.watchdog_interval(), None);
    }

    #[test]
    fn the_watchdog_is_fed_twice_as_often_as_asked() {
        let pid = std::process::id().to_string();
        for (usec, pid, expected) in [
            (Some("30000000"), None, Some(Duration::from_secs(15))),
            (Some("30000000"), Some(pid.as_str()), Some(Duration::from_secs(15))),
            (Some("30000000"), Some("1"), None),
            (Some("0"), None, None),
            (Some("x"), None, None),
            (None, None, None),
        ] {
            let environment = NotifyEnvironment {
                notify_socket: None,
                watchdog_usec: usec.map(Into::into),
                watchdog_pid: pid.map(Into::into),
            };
            assert_eq!(Notifier::new(&environment).unwrap().watchdog_interval(), expected);
        }
    }

    #[test]
    fn a_socket_that_is_gone_is_no_error() {
        let environment = NotifyEnvironment {
            notify_socket: Some("/nonexistent/socket".into()),
            ..Default::default()
        };
        Notifier::new(&environment).unwrap().ready();
    }
}
