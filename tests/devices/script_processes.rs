//! Processes that run scripts: scripts cannot outlive their limits, and tenants do not wait for each other.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use platform::chain::{
    ScriptAnswer, ScriptCall, ScriptError, ScriptProgram, ScriptRunner, ScriptWorkers, ScriptWorkersOptions,
};
use platform::ids::{TenantId, Uuid};

/// Scripts use CPU time, which a busy machine gives slowly.
const LONGEST: Duration = Duration::from_secs(120);

const A: TenantId = TenantId(Uuid([1; 16]));
const B: TenantId = TenantId(Uuid([2; 16]));

fn workers(cpu_percent: u32, processes_max: usize) -> Arc<ScriptWorkers> {
    let workers = ScriptWorkers::start(ScriptWorkersOptions {
        program: ScriptProgram {
            path: PathBuf::from(env!("CARGO_BIN_EXE_tidewire")),
            arguments: vec!["script-worker".to_owned()],
        },
        cpu_percent,
        processes_max,
    });
    Arc::new(workers.expect("the program starts"))
}

/// A call of a script with this body.
fn call(tenant: TenantId, body: &str) -> ScriptCall {
    ScriptCall {
        tenant,
        source: format!("(function(msg, metadata, msgType) {{ \"use strict\";\n{body}\n}})").into(),
        data: "{\"a\":1}".to_owned(),
        metadata: "{}".to_owned(),
        kind: "POST_TELEMETRY_REQUEST".to_owned(),
    }
}

/// Returns a script that uses about 150 ms of CPU time on this machine.
fn slow_script(workers: &ScriptWorkers) -> String {
    let body = |rounds: u64| format!("let n = 0; for (let i = 0; i < {rounds}; i++) n += i % 7; return msg.a;");
    let answer = workers.run_blocking(call(TenantId(Uuid([3; 16])), &body(200_000)));
    assert_eq!(answer.result, Ok("1".to_owned()));
    let nanos = answer.cpu.as_nanos().max(1) as u64;
    body(200_000 * 150_000_000 / nanos)
}

/// Runs a script as rule chains do, and waits for its answer if it takes long.
fn run(workers: &ScriptWorkers, number: u64, call: ScriptCall) -> ScriptAnswer {
    if let Some(answer) = workers.run(call, number) {
        return answer;
    }
    answers(workers, 1).remove(0).1
}

/// Waits for this many answers.
fn answers(workers: &ScriptWorkers, count: usize) -> Vec<(u64, ScriptAnswer)> {
    let begun = Instant::now();
    let mut all = Vec::new();
    while all.len() < count {
        all.extend(workers.take_answers());
        assert!(begun.elapsed() < LONGEST, "{count} answers are expected: {all:?}");
        thread::sleep(Duration::from_millis(1));
    }
    all
}

#[test]
fn endless_scripts_end_and_later_ones_run() {
    let workers = workers(100, 2);
    for (number, endless) in [
        "while (true) {}",
        "try { while (true) {} } catch (e) {} finally { while (true) {} }",
        "const f = () => f() + 1; return f();",
        "let a = []; while (true) a.push(new Array(100000).fill(1));",
        "return /(a+)+$/.test('a'.repeat(50) + 'b');",
        "new Set({ [Symbol.iterator]: () => ({ next: Object.bind(null, { value: 1, done: false }) }) });",
        "return Array.prototype.indexOf.call({ length: 2 ** 53 - 1 }, 1);",
        "return Array.prototype.reverse.call({ length: 2 ** 53 - 1 });",
        "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);",
    ]
    .into_iter()
    .enumerate()
    {
        let number = 2 * number as u64;
        let answer = run(&workers, number, call(A, endless));
        assert!(answer.result.is_err(), "{endless}: {answer:?}");
        let later = run(&workers, number + 1, call(A, "return msg.a + 1;"));
        assert_eq!(later.result, Ok("2".to_owned()), "{endless}");
    }
}

#[test]
fn process_of_a_script_that_cannot_be_interrupted_is_killed() {
    let workers = workers(100, 2);
    let endless = "Array.prototype.reverse.call({ length: 2 ** 53 - 1 });";
    assert_eq!(workers.run(call(A, endless), 1), None);
    // Another tenant does not wait for it.
    assert_eq!(run(&workers, 2, call(B, "return 1;")).result, Ok("1".to_owned()));
    let (number, answer) = answers(&workers, 1).remove(0);
    assert_eq!((number, answer.result), (1, Err(ScriptError::Killed)));
    assert!(answer.cpu >= Duration::from_millis(900), "{:?}", answer.cpu);
    let usage = workers.usage();
    assert_eq!((usage.killed_total, usage.waiting), (1, 0));
    let of_a = usage.tenants.iter().find(|usage| usage.tenant == A).expect("a tenant");
    assert!(of_a.cpu >= Duration::from_millis(900), "{of_a:?}");
}

#[test]
fn process_ends_with_the_server_even_within_a_script() {
    let mut process = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .arg("script-worker")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let source = "(function() { Array.prototype.reverse.call({ length: 2 ** 53 - 1 }); })";
    let mut frame = vec![1; 16];
    for text in [source, "{}", "{}"] {
        frame.extend((text.len() as u32).to_le_bytes());
    }
    frame.extend([source, "{}", "{}"].concat().as_bytes());
    let mut input = process.stdin.take().expect("a pipe");
    input
        .write_all(&(frame.len() as u32).to_le_bytes())
        .expect("the process reads");
    input.write_all(&frame).expect("the process reads");
    let begun = Instant::now();
    let stat = format!("/proc/{}/stat", process.id());
    // User time in hundredths of a second: the script runs.
    let user_time = || -> Option<u64> {
        let text = fs::read_to_string(&stat).ok()?;
        text.rsplit_once(')')?.1.split_whitespace().nth(11)?.parse().ok()
    };
    while user_time().expect("the process runs") < 30 {
        assert!(begun.elapsed() < LONGEST, "the script does not run");
        thread::sleep(Duration::from_millis(5));
    }
    drop(input);
    while process.try_wait().expect("our child").is_none() {
        assert!(begun.elapsed() < LONGEST, "the process goes on without the server");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn calls_of_a_tenant_are_answered_in_order() {
    let workers = workers(100, 4);
    let slow = slow_script(&workers);
    assert_eq!(workers.run(call(A, &slow), 0), None);
    for number in 1..20 {
        let body = if number % 7 == 0 { &*slow } else { "return 1;" };
        assert_eq!(
            workers.run(call(A, body), number),
            None,
            "no call overtakes the first one"
        );
    }
    let numbers: Vec<u64> = answers(&workers, 20).into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, (0..20).collect::<Vec<u64>>());
}

#[test]
fn tenant_waits_when_it_has_used_its_cpu_time() {
    // 200 ms of CPU time in 10 s.
    let workers = workers(2, 2);
    let slow = slow_script(&workers);
    (0..6).for_each(|number| assert_eq!(workers.run(call(A, &slow), number), None));
    let begun = Instant::now();
    while !workers.usage().tenants.iter().any(|usage| usage.is_over_budget) {
        assert!(begun.elapsed() < LONGEST, "{:?}", workers.usage());
        thread::sleep(Duration::from_millis(1));
    }
    assert!(workers.usage().waiting > 0);
    assert_eq!(
        run(&workers, 10, call(B, "return 1;")).result,
        Ok("1".to_owned()),
        "another tenant"
    );
    let before = workers.usage().waiting;
    (0..6).for_each(|number| workers.cancel(A, number));
    assert!(workers.usage().waiting < before);
}

#[test]
fn blocking_call_returns_its_result() {
    let workers = workers(100, 1);
    let answer = workers.run_blocking(call(A, "return msg.a + 1;"));
    assert_eq!(answer.result, Ok("2".to_owned()));
    let answer = workers.run_blocking(call(A, "return 'x'.repeat(400000);"));
    assert!(answer.result.is_err(), "the result is too long");
    let answer = workers.run_blocking(call(A, "throw 'x'.repeat(4000000);"));
    assert!(answer.result.is_err_and(|error| error.to_string().len() <= 400_000));
    assert_eq!(workers.run_blocking(call(A, "return 3;")).result, Ok("3".to_owned()));
}
