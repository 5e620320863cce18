//! Scripts of one tenant try to take the server's time from the other tenants: slow ones, endless ones, and ones that
//! the JavaScript engine cannot interrupt.

use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::devices::rest::Rest;
use crate::devices::scripts::{another_tenant, put_script};
use crate::devices::world::login;
use crate::support::api::Api;
use crate::support::*;

pub(super) const CONFIG: &str = "[platform]\nenabled = true\ndemo = true\n";
pub(super) const TELEMETRY: &str = "v1/devices/me/telemetry";

/// Runs for almost as long as a script may.
const SLOW: &str = "const end = Date.now() + 450; while (Date.now() < end); return true;";
const ENDLESS: &str = "while (true) {}";
/// The engine checks for interrupts in no iteration of this function.
const NATIVE_LOOP: &str = "Array.prototype.reverse.call({length: 2 ** 53 - 1}); return true;";

/// Scripts use CPU time, which a busy machine gives slowly.
pub(super) const LONGEST: Duration = Duration::from_secs(120);

/// Messages of the other tenant in one window of the measurement.
const MEASURED: usize = 60;

/// Windows during an attack. Scripts of another tenant would delay all of them. Other processes on the machine delay
/// few, so the first window without delays is enough.
const WINDOWS: usize = 4;

/// Clock ticks per second of `/proc/<pid>/stat` on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// A device of the tenant that is not attacked.
pub(super) struct Victim<'a> {
    rest: &'a Rest,
    device: String,
    session: Peer,
    sent: usize,
}

impl<'a> Victim<'a> {
    /// Creates the device and sends a first message.
    pub fn connect(server: &Server, rest: &'a Rest) -> Victim<'a> {
        let mut victim = Victim {
            device: rest.device("Quick", "QUICK"),
            rest,
            session: server.session(&login(V4, "QUICK")),
            sent: 0,
        };
        victim.latency();
        victim
    }

    /// Returns the expected delay of a message without an attack.
    pub fn usual_delay(&mut self) -> Duration {
        self.window("without an attack")
    }

    /// Checks that an attack does not delay the messages of this tenant.
    ///
    /// `usual` is the result of [`Victim::usual_delay`].
    pub fn assert_not_delayed(&mut self, usual: Duration, attack: &str) {
        // A message that waits for one script waits for 450 ms to 3 s.
        let limit = Duration::from_millis(250).max(4 * usual);
        let mut shortest = Duration::MAX;
        for _ in 0..WINDOWS {
            shortest = shortest.min(self.window(attack));
            if shortest < limit {
                return;
            }
        }
        panic!("{attack}: the messages of another tenant wait for {shortest:?}, without the attack for {usual:?}");
    }

    /// Sends the messages of one window, prints their times and returns the expected delay.
    fn window(&mut self, attack: &str) -> Duration {
        let mut times: Vec<Duration> = (0..MEASURED).map(|_| self.latency()).collect();
        times.sort_unstable();
        let expected = expected(&times);
        let [p50, p90, longest] = [50, 90, 100].map(|percent| at(&times, percent));
        println!("{attack}: p50 {p50:?}, p90 {p90:?}, longest {longest:?}, expected {expected:?}");
        expected
    }

    /// Returns the time from sending a message until a reader sees its value.
    fn latency(&mut self) -> Duration {
        self.sent += 1;
        let value = self.sent.to_string();
        let path = format!("/api/plugins/telemetry/DEVICE/{}/values/timeseries?keys=v", self.device);
        let begun = Instant::now();
        let message = Publish::new(TELEMETRY, format!("{{\"v\":{value}}}")).qos(1);
        self.session.publish(&message);
        while self.rest.ok("GET", &path, &Json::Null)["v"][0]["value"] != value.as_str() {
            assert!(begun.elapsed() < LONGEST, "message {value} is not processed");
        }
        begun.elapsed()
    }
}

fn at(times: &[Duration], percent: usize) -> Duration {
    times[(times.len() - 1) * percent / 100]
}

/// Time-weighted mean: the expected delay of a message that is sent at a random time.
fn expected(times: &[Duration]) -> Duration {
    let squares: f64 = times.iter().map(|time| time.as_secs_f64().powi(2)).sum();
    Duration::from_secs_f64(squares / times.iter().sum::<Duration>().as_secs_f64())
}

/// CPU time of the server and its child processes, including those that have ended.
fn cpu_time(server: &Server) -> Duration {
    let mut ticks = 0;
    for entry in fs::read_dir("/proc").expect("a list of processes").flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let Some((start, rest)) = stat.rsplit_once(')') else {
            continue;
        };
        // The fields from the third one on: state, parent, …, user and system time, those of ended children.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |index: usize| {
            fields
                .get(index)
                .and_then(|field| field.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let is_server = start.split(' ').next() == Some(&*server.pid().to_string());
        if is_server {
            ticks += (11..15).map(number).sum::<u64>();
        } else if number(1) == u64::from(server.pid()) {
            ticks += number(11) + number(12);
        }
    }
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Child processes of the server.
fn children(server: &Server) -> Vec<u32> {
    let pids = fs::read_dir("/proc").expect("a list of processes").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parent == Some(server.pid())
    };
    pids.filter(is_child).collect()
}

/// CPU seconds of the tenants' scripts, in the order of the metrics.
fn script_cpu_seconds(server: &Server) -> Vec<f64> {
    let (_, text) = server.http_get("/metrics");
    let values = text
        .lines()
        .filter(|line| line.starts_with("tidewire_platform_script_cpu_seconds_total{tenant="));
    values
        .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
        .collect()
}

#[test]
fn scripts_of_a_tenant_do_not_delay_other_tenants() {
    let mut server = Server::start(&Config::new(CONFIG));
    let (rest, attacker) = (Rest::login(&server), another_tenant(&server));
    let mut victim = Victim::connect(&server, &rest);
    attacker.device("Slow", "SLOW");
    let mut slow = server.session(&login(V4, "SLOW"));
    let usual = victim.usual_delay();

    for (name, script) in [("slow", SLOW), ("endless", ENDLESS), ("native loop", NATIVE_LOOP)] {
        put_script(&attacker, script);
        let is_measured = AtomicBool::new(false);
        thread::scope(|scope| {
            let _measured = SetOnDrop(&is_measured);
            scope.spawn(|| {
                while !is_measured.load(Acquire) {
                    slow.publish(&Publish::new(TELEMETRY, "{\"v\":1}").qos(1));
                    thread::sleep(Duration::from_millis(20));
                }
            });
            victim.assert_not_delayed(usual, &format!("during {name} scripts"));
        });
    }

    server.wait_until_within(LONGEST, "the script that cannot be interrupted is killed", |server| {
        let (_, text) = server.http_get("/metrics");
        let killed = text
            .lines()
            .find_map(|line| line.strip_prefix("tidewire_platform_script_processes_killed_total "));
        killed.is_some_and(|killed| killed != "0")
    });

    // No script runs on.
    put_script(&attacker, "return true;");
    server.wait_until_within(LONGEST, "the server and its workers use no core", |server| {
        let before = cpu_time(server);
        thread::sleep(Duration::from_secs(1));
        let used = cpu_time(server) - before;
        used < Duration::from_millis(300)
    });
    victim.latency();

    // A process with a script that cannot be interrupted does not outlive the server.
    put_script(&attacker, NATIVE_LOOP);
    slow.publish(&Publish::new(TELEMETRY, "{\"v\":1}").qos(1));
    let processes = children(&server);
    assert!(!processes.is_empty());
    server.kill();
    let begun = Instant::now();
    while processes.iter().any(|process| is_running(*process)) {
        assert!(begun.elapsed() < LONGEST, "a process outlives the server");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn tenant_over_its_cpu_budget_raises_an_alarm() {
    let server = Server::start(&Config::new(format!("{CONFIG}script_cpu_percent = 1\n")));
    let (rest, attacker) = (Rest::login(&server), another_tenant(&server));
    attacker.device("Slow", "SLOW");
    put_script(&attacker, ENDLESS);
    let mut slow = server.session(&login(V4, "SLOW"));
    for _ in 0..5 {
        slow.publish(&Publish::new(TELEMETRY, "{\"v\":1}").qos(1));
    }
    let api = Api::of(&server);
    server.wait_until_within(LONGEST, "the alarm about the tenant's scripts", |_| {
        let alarms = api.get("/api/v1/alarms");
        let active = alarms["active"].as_array().into_iter().flatten();
        active
            .filter_map(|alarm| alarm["name"].as_str())
            .any(|name| name.starts_with("script_cpu:"))
    });
    let seconds = script_cpu_seconds(&server);
    println!("CPU time of scripts by tenant: {seconds:?} s");
    assert!(seconds.iter().any(|used| *used > 0.4), "{seconds:?}");
    let (_, text) = server.http_get("/metrics");
    assert!(text.contains("\ntidewire_platform_script_over_budget_tenants 1\n"));
    // The other tenant is not over its budget.
    Victim::connect(&server, &rest);
}
