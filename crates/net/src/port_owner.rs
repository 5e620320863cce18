//! Finds the process that listens on a port, for the message of a failed bind. Linux only, best effort, never on the
//! data plane.
//!
//! `/proc/net/tcp{,6}` maps the port to a socket inode, `/proc/<pid>/fd` maps the inode to a process. Processes of
//! other users are not visible without privileges; then the result is `None`.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOwner {
    pub pid: u32,
    /// The command line, or the short process name if the command line is unreadable.
    pub command: String,
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)
    }
}

/// Maximum number of displayed characters of a command line.
const COMMAND_MAX: usize = 80;

/// Returns the process that listens on the port of this address, if it is visible to this process.
pub fn find(address: SocketAddr) -> Option<PortOwner> {
    let mut inodes = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        if let Ok(table) = fs::read_to_string(table) {
            inodes.extend(table.lines().filter_map(|line| listening_inode(line, address.port())));
        }
    }
    if inodes.is_empty() {
        return None;
    }
    let links: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        has_open_socket(&entry.path().join("fd"), &links).then(|| PortOwner {
            pid,
            command: command(&entry.path()),
        })
    })
}

/// Returns the socket inode of a line of `/proc/net/tcp` if it is a listener on `port`.
fn listening_inode(line: &str, port: u16) -> Option<u64> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?;
    let (_, local_port) = local.rsplit_once(':')?;
    let is_match = state == LISTEN && u16::from_str_radix(local_port, 16) == Ok(port);
    inode.parse().ok().filter(|_| is_match)
}

fn has_open_socket(fds: &Path, links: &[String]) -> bool {
    let Ok(fds) = fs::read_dir(fds) else { return false };
    fds.flatten().any(|fd| {
        fs::read_link(fd.path()).is_ok_and(|link| links.iter().any(|wanted| link.as_os_str() == wanted.as_str()))
    })
}

fn command(process: &Path) -> String {
    let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut command: String = String::from_utf8_lossy(&arguments)
        .trim_end_matches('\0')
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(COMMAND_MAX)
        .collect();
    if command.is_empty() {
        command = fs::read_to_string(process.join("comm"))
            .unwrap_or_default()
            .trim()
            .to_owned();
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENER: &str = "   0: 0100007F:075B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 48213 1 0000000000000000 100 0 0 10 0";
    const CONNECTED: &str = "   1: 0100007F:075B 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 48999 1 0000000000000000 20 4 30 10 -1";

    #[test]
    fn only_listeners_on_the_port_match() {
        assert_eq!(listening_inode(LISTENER, 1883), Some(48213));
        assert_eq!(listening_inode(LISTENER, 1884), None);
        assert_eq!(listening_inode(CONNECTED, 1883), None);
        assert_eq!(
            listening_inode("  sl  local_address rem_address   st tx_queue rx_queue", 1883),
            None
        );
        assert_eq!(listening_inode("", 1883), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn own_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let owner = find(listener.local_addr().unwrap()).unwrap();
        assert_eq!(owner.pid, std::process::id());
        assert!(!owner.command.is_empty());
    }
}
