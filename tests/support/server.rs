//! A broker process of the test's own: started with its own data directory and ports, ended with the test.
//!
//! `Server::shared` is one per test binary, for every test that only talks to it; tests that measure memory or need a
//! configuration start their own. A shell between us and the broker kills it and removes its directory when this process
//! is gone, however it went. A server can be killed and started again on the same directory and ports.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::target::Target;
use super::websocket::WebSocket;
use super::{Connect, PATIENCE, Peer, V4, free_port, unique};

/// What a server is started with, besides its listeners and data directory.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The configuration file of tidewire; listeners on loopback and the data directory are set besides.
    pub toml: String,
    /// The same in `mosquitto.conf`, for a suite that is also run against it.
    pub mosquitto: String,
    /// Files to put into the data directory; `{dir}` in the texts above names it.
    pub files: Vec<(&'static str, String)>,
    /// What tidewire is told to do, if not to serve.
    pub subcommand: Option<&'static str>,
    /// Environment variables; `{dir}` in a value is the server's directory.
    pub environment: Vec<(&'static str, String)>,
}

impl Config {
    pub fn new(toml: impl Into<String>) -> Config {
        Config {
            toml: toml.into(),
            ..Config::default()
        }
    }

    pub fn mosquitto(mut self, text: impl Into<String>) -> Config {
        self.mosquitto = text.into();
        self
    }

    pub fn environment(mut self, name: &'static str, value: impl Into<String>) -> Config {
        self.environment.push((name, value.into()));
        self
    }

    pub fn file(mut self, name: &'static str, text: impl Into<String>) -> Config {
        self.files.push((name, text.into()));
        self
    }
}

/// Where a server listens; the ports are free when they are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub mqtt: SocketAddr,
    pub websocket: SocketAddr,
    pub http: SocketAddr,
}

#[derive(Debug)]
pub struct Server {
    ports: Ports,
    pid: u32,
    dir: PathBuf,
    config: Config,
    /// The shell that guards the broker; none for a broker that was running already.
    guard: Option<Child>,
}

impl Server {
    /// The server that tests of this binary share: default configuration, anonymous clients from loopback.
    #[track_caller]
    pub fn shared() -> &'static Server {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| Server::start(&Config::default()))
    }

    /// Starts a server and waits until it serves. Fails with its log if it does not.
    #[track_caller]
    pub fn start(config: &Config) -> Server {
        // Another process may take a port between our look and the server's bind.
        for _ in 0..3 {
            match Server::try_start(config) {
                Ok(server) => return server,
                Err(log) if log.contains("in use") => {}
                Err(log) => panic!("the server does not start; its log:\n{log}"),
            }
        }
        panic!("the server found its ports taken, three times");
    }

    fn try_start(config: &Config) -> Result<Server, String> {
        let target = Target::from_environment();
        if let Target::Running { mqtt, pid } = target {
            let ports = Ports {
                mqtt,
                websocket: mqtt,
                http: mqtt,
            };
            return Ok(Server {
                ports,
                pid,
                dir: PathBuf::new(),
                config: config.clone(),
                guard: None,
            });
        }
        let dir = std::env::temp_dir().join(unique(&format!("tidewire-test-{}", std::process::id())));
        fs::create_dir_all(&dir).expect("the temporary directory is writable");
        for (name, text) in &config.files {
            fs::write(dir.join(name), text).expect("the server's directory is writable");
        }
        let ports = Ports {
            mqtt: free_port(),
            websocket: free_port(),
            http: free_port(),
        };
        let (mut guard, pid) = spawn(&dir, target.command(&dir, &ports, config));
        let deadline = Instant::now() + PATIENCE;
        while !target.is_ready(&ports) {
            if !is_running(pid) || Instant::now() > deadline {
                let log = log_of(&dir);
                end(&mut guard);
                return Err(log);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Server {
            ports,
            pid,
            dir,
            config: config.clone(),
            guard: Some(guard),
        })
    }

    /// SIGKILL, whatever the process is doing. Directory and log stay.
    pub fn kill(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        let mut order = guard.stdin.take().expect("the input is piped");
        order.write_all(b"keep\n").expect("the guard is waiting for this");
        guard.wait().expect("the guard is our child");
    }

    /// SIGSTOP: the process lives and does nothing, its sockets are open.
    pub fn freeze(&self) {
        signal(self.pid, "STOP");
    }

    /// What the next start reads.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Starts the process again after `kill`, and does not wait for it.
    pub fn spawn_again(&mut self) {
        let command = Target::from_environment().command(&self.dir, &self.ports, &self.config);
        let (guard, pid) = spawn(&self.dir, command);
        (self.guard, self.pid) = (Some(guard), pid);
    }

    /// Fails with the server's log if it ends instead.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        let target = Target::from_environment();
        self.wait_until("the server is ready", |server| {
            assert!(
                is_running(server.pid),
                "the server does not start; its log:\n{}",
                tail(&server.log())
            );
            target.is_ready(&server.ports)
        });
    }

    pub fn mqtt(&self) -> SocketAddr {
        self.ports.mqtt
    }

    pub fn websocket(&self) -> SocketAddr {
        self.ports.websocket
    }

    pub fn http(&self) -> SocketAddr {
        self.ports.http
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the server has written to standard output and standard error.
    pub fn log(&self) -> String {
        log_of(&self.dir)
    }

    /// A TCP connection on which nothing has been sent.
    #[track_caller]
    pub fn connect(&self) -> Peer {
        Peer::connect(self.ports.mqtt)
    }

    /// A connection with an accepted CONNECT.
    #[track_caller]
    pub fn session(&self, connect: &Connect) -> Peer {
        Peer::session(self.ports.mqtt, connect)
    }

    /// A WebSocket connection, upgraded, on which no packet has been sent.
    #[track_caller]
    pub fn web_socket(&self) -> WebSocket {
        WebSocket::open(self.ports.websocket)
    }

    /// One GET of the HTTP side: status and body.
    #[track_caller]
    pub fn http_get(&self, path: &str) -> (u16, String) {
        let mut stream = super::peer::connect_tcp(self.ports.http);
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a socket takes a timeout");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("the server takes a request");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("the server answers and closes");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .expect("a status line");
        (status, body.to_owned())
    }

    /// A new client is served: CONNECT, PINGREQ, DISCONNECT.
    #[track_caller]
    pub fn assert_alive(&self) {
        self.assert_alive_as(&Connect::new(V4, unique("alive")));
    }

    /// The same, for a server that wants credentials.
    #[track_caller]
    pub fn assert_alive_as(&self, connect: &Connect) {
        assert!(
            is_running(self.pid),
            "the broker has died; its log:\n{}",
            tail(&self.log())
        );
        let mut peer = self.session(connect);
        peer.ping_alone();
        peer.disconnect();
    }

    /// Resident memory in KiB.
    #[track_caller]
    pub fn rss_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// The most that has been resident since it was started, or since `forget_rss_peak`.
    #[track_caller]
    pub fn rss_peak_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    pub fn forget_rss_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5").expect("the broker is running");
    }

    #[track_caller]
    fn status_kib(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("the broker is running");
        let line = status.lines().find(|line| line.starts_with(key));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        kib.expect("Linux tells of the memory of a live process, in KiB")
    }

    /// File descriptors the broker has open.
    pub fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid))
            .expect("the broker is running")
            .count()
    }

    /// Waits until `condition` holds, looking every 5 ms.
    #[track_caller]
    pub fn wait_until(&self, what: &str, condition: impl FnMut(&Server) -> bool) {
        self.wait_until_within(PATIENCE, what, condition);
    }

    #[track_caller]
    pub fn wait_until_within(&self, within: Duration, what: &str, mut condition: impl FnMut(&Server) -> bool) {
        let deadline = Instant::now() + within;
        while !condition(self) {
            assert!(Instant::now() < deadline, "not within {within:?}: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM and waits for the end of the process, which must come within the time given.
    #[track_caller]
    pub fn terminate(&self, within: Duration) {
        signal(self.pid, "TERM");
        let deadline = Instant::now() + within;
        while is_running(self.pid) {
            assert!(Instant::now() < deadline, "still running {within:?} after SIGTERM");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the server\n{}", tail(&log_of(&self.dir)));
        }
        match &mut self.guard {
            Some(guard) => end(guard),
            // Killed and not started again; empty for a broker that was running already.
            None if self.dir.as_os_str().is_empty() => {}
            None => _ = fs::remove_dir_all(&self.dir),
        }
    }
}

/// Starts the broker under a shell that ends it when our end of the pipe is closed. Returns the broker's pid.
fn spawn(dir: &Path, broker: Vec<String>) -> (Child, u32) {
    const GUARD: &str = r#"
        dir=$1; shift
        "$@" </dev/null >>"$dir/log" 2>&1 &
        pid=$!
        echo "$pid"
        read -r word
        kill -9 "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        [ "$word" = keep ] || rm -rf "$dir"
    "#;
    let mut guard = Command::new("sh")
        .args(["-c", GUARD, "guard"])
        .arg(dir)
        .args(broker)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("there is a shell");
    let mut first_line = String::new();
    let output: ChildStdout = guard.stdout.take().expect("the output is piped");
    BufReader::new(output)
        .read_line(&mut first_line)
        .expect("the guard tells the pid");
    let pid = first_line.trim().parse().expect("the guard tells the pid");
    (guard, pid)
}

fn end(guard: &mut Child) {
    drop(guard.stdin.take());
    guard.wait().expect("the guard is our child");
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("sh")
        .args(["-c", &format!("kill -{name} {pid}")])
        .status()
        .expect("there is a shell");
    assert!(status.success(), "the broker (pid {pid}) has gone");
}

/// Whether the process exists and has not ended (a zombie waits for its guard).
fn is_running(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn log_of(dir: &Path) -> String {
    String::from_utf8_lossy(&fs::read(dir.join("log")).unwrap_or_default()).into_owned()
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Whether something accepts connections there.
pub fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}
