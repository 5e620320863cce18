//! Starts a broker process with its own data directory and ports, and stops it at the end of the test.
//!
//! `Server::shared` is one server per test binary for all tests that only exchange packets. Tests that measure memory
//! or need a configuration start their own. A shell between the test and the broker kills the broker and removes its
//! directory when the test process ends for any reason. A server can be killed and restarted on the same directory and
//! ports.

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

/// Start parameters of a server. The listeners and the data directory are set automatically.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Configuration file of tidewire, without the listeners and the data directory.
    pub toml: String,
    /// Equivalent `mosquitto.conf`, for suites that also run against mosquitto.
    pub mosquitto: String,
    /// Files to write to the server's directory. `{dir}` in the configurations is replaced with its path.
    pub files: Vec<(&'static str, String)>,
    /// Subcommand to run instead of serving.
    pub subcommand: Option<&'static str>,
    /// Environment variables. `{dir}` in a value is replaced with the path of the server's directory.
    pub environment: Vec<(&'static str, String)>,
    /// Hard and soft limit of open files.
    pub open_files_max: Option<u32>,
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

/// Addresses of a server. The ports are free when they are chosen.
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
    /// The shell that guards the broker. `None` if the broker was already running.
    guard: Option<Child>,
}

impl Server {
    /// Returns the server that tests of this binary share. It has the default configuration and accepts anonymous
    /// clients from loopback.
    #[track_caller]
    pub fn shared() -> &'static Server {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| Server::start(&Config::default()))
    }

    /// Starts a server and waits until it is ready. Fails with the server's log if it does not start.
    #[track_caller]
    pub fn start(config: &Config) -> Server {
        // Another process may bind a port between our check and the server's bind.
        let mut last = String::new();
        for _ in 0..3 {
            match Server::try_start(config) {
                Ok(server) => return server,
                Err(log) if log.contains("in use") => last = log,
                Err(log) => panic!("the server does not start; its log:\n{log}"),
            }
        }
        panic!("the ports of the server were in use in three attempts; the last log:\n{last}");
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

    /// Sends SIGKILL. The directory and the log are not removed.
    pub fn kill(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        let mut order = guard.stdin.take().expect("the input is piped");
        order.write_all(b"keep\n").expect("the guard is waiting for this");
        guard.wait().expect("the guard is our child");
    }

    /// Returns whether the process exists.
    pub fn is_running(&self) -> bool {
        is_running(self.pid)
    }

    /// Sends SIGSTOP. The process stops running, but its sockets stay open.
    pub fn freeze(&self) {
        signal(self.pid, "STOP");
    }

    /// Sends SIGCONT. The process continues where `freeze` stopped it.
    pub fn thaw(&self) {
        signal(self.pid, "CONT");
    }

    /// Sets the configuration that the next start reads.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Restarts the process after `kill`. Does not wait until it is ready.
    pub fn spawn_again(&mut self) {
        let command = Target::from_environment().command(&self.dir, &self.ports, &self.config);
        let (guard, pid) = spawn(&self.dir, command);
        (self.guard, self.pid) = (Some(guard), pid);
    }

    /// Waits until the server is ready. Fails with the server's log if the process ends.
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

    /// Returns the output of the server on standard output and standard error.
    pub fn log(&self) -> String {
        log_of(&self.dir)
    }

    /// Opens a TCP connection and sends nothing.
    #[track_caller]
    pub fn connect(&self) -> Peer {
        Peer::connect(self.ports.mqtt)
    }

    /// Opens a connection and sends a CONNECT, which must be accepted.
    #[track_caller]
    pub fn session(&self, connect: &Connect) -> Peer {
        Peer::session(self.ports.mqtt, connect)
    }

    /// Opens an upgraded WebSocket connection and sends no MQTT packet.
    #[track_caller]
    pub fn web_socket(&self) -> WebSocket {
        WebSocket::open(self.ports.websocket)
    }

    /// Sends an HTTP GET and returns status and body.
    #[track_caller]
    pub fn http_get(&self, path: &str) -> (u16, String) {
        let mut stream = super::peer::connect_tcp(self.ports.http);
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a socket accepts a timeout");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("the server accepts a request");
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

    /// Checks that a new client can complete CONNECT, PINGREQ and DISCONNECT.
    #[track_caller]
    pub fn assert_alive(&self) {
        self.assert_alive_as(&Connect::new(V4, unique("alive")));
    }

    /// Does the same as `assert_alive` with this CONNECT, for a server that requires credentials.
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

    /// Returns the resident memory in KiB.
    #[track_caller]
    pub fn rss_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// Returns the resident memory of the broker without mapped files, in KiB. Unlike `rss_kib`, it does not grow when
    /// code runs for the first time.
    #[track_caller]
    pub fn anonymous_kib(&self) -> u64 {
        self.status_kib("RssAnon:")
    }

    /// Returns the peak of resident memory since the start or the last `forget_rss_peak`, in KiB.
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
        kib.expect("Linux reports the memory of a live process in KiB")
    }

    /// Returns the number of open file descriptors of the broker.
    pub fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid))
            .expect("the broker is running")
            .count()
    }

    /// Waits until `condition` holds. Checks it every 5 ms.
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

    /// Sends SIGTERM and waits for the process to end, which must happen in time.
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
            // There is no guard if the server was killed and not restarted, or if the broker was already running.
            None if self.dir.as_os_str().is_empty() => {}
            None => _ = fs::remove_dir_all(&self.dir),
        }
    }
}

/// Starts the broker under a shell that kills it when our end of the pipe is closed. Returns the shell and the broker's
/// pid.
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
        .expect("a shell is installed");
    let mut first_line = String::new();
    let output: ChildStdout = guard.stdout.take().expect("the output is piped");
    BufReader::new(output)
        .read_line(&mut first_line)
        .expect("the guard prints the pid");
    let pid = first_line.trim().parse().expect("the guard prints the pid");
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
        .expect("a shell is installed");
    assert!(status.success(), "the broker (pid {pid}) is not running");
}

/// Returns whether the process is running. A zombie counts as ended.
pub fn is_running(pid: u32) -> bool {
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

/// Returns whether the address accepts connections.
pub fn accepts(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}
