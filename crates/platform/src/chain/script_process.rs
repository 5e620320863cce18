//! A process that runs scripts. The server starts it from its own program, and talks to it over two pipes. It can be
//! killed at any time, because it has no state that outlives a call.
//!
//! ```text
//! call:   u32 length of the rest | tenant (16 bytes) | u32 length of source, data and metadata each
//!         | source | data | metadata | type
//! answer: u32 length of the rest | u64 CPU nanoseconds of the call | u64 CPU nanoseconds of the process so far
//!         | u8 kind of result (below) | text
//! ```
//!
//! Numbers are little endian. The process ends when its input is closed, even while a script runs.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Resource, Rlimit, setpriority_process, setrlimit};
use rustix::thread::set_no_new_privs;

use super::realm::{REALMS_MAX, run_in_thread};
use super::script::{ARGUMENT_BYTES_MAX, RESULT_BYTES_MAX, SOURCE_BYTES_MAX, ScriptAnswer, ScriptCall, ScriptError};
use crate::cpu_time::cpu_time;
use crate::ids::{TenantId, Uuid};

/// Priority of processes whose scripts may take long. The server's threads have priority 0.
const BACKGROUND_NICE: i32 = 10;
/// The process reads a call at once. Far more than that takes, because the machine may be busy.
const SEND_MAX: Duration = Duration::from_secs(5);

const CALL_BYTES_MAX: usize = SOURCE_BYTES_MAX + ARGUMENT_BYTES_MAX + (1 << 20);
const ANSWER_BYTES_MAX: usize = RESULT_BYTES_MAX + 64 * 1024;
const RETURNED: u8 = 0;
const FAILED: u8 = 1;
const OVER_LIMIT: u8 = 2;

/// How a process is started.
#[derive(Clone, Debug)]
pub struct ScriptProgram {
    pub path: PathBuf,
    pub arguments: Vec<String>,
}

pub struct ScriptProcess {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// Bytes of an incomplete answer.
    received: Vec<u8>,
    /// Tenants with a realm in the process.
    known: HashSet<TenantId>,
    /// CPU time of all calls that have ended.
    cpu_before: Duration,
}

impl Drop for ScriptProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ScriptProcess {
    pub fn start(program: &ScriptProgram) -> io::Result<ScriptProcess> {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).env_clear().current_dir("/");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // A signal of the terminal is for the server, which still needs its processes while it stops.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the process has no pipes"));
        };
        let started = ScriptProcess {
            child,
            input,
            output,
            received: Vec::new(),
            known: HashSet::new(),
            cpu_before: Duration::ZERO,
        };
        ioctl_fionbio(&started.input, true)?;
        ioctl_fionbio(&started.output, true)?;
        Ok(started)
    }

    pub fn output(&self) -> &ChildStdout {
        &self.output
    }

    /// Lowers the priority for good: only a privileged process may raise it again.
    pub fn lower_priority(&self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // If it fails, the process keeps its priority.
            let _ = setpriority_process(Some(pid), BACKGROUND_NICE);
        }
    }

    /// CPU time of the call that runs. `None` if the system does not report it.
    pub fn cpu_of_call(&self) -> Option<Duration> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.child.id())).ok()?;
        let nanos = text.split(' ').next()?.parse().ok()?;
        Some(Duration::from_nanos(nanos).saturating_sub(self.cpu_before))
    }

    /// Whether the process has a realm of the tenant.
    pub fn knows(&self, tenant: TenantId) -> bool {
        self.known.contains(&tenant)
    }

    /// Sends a call. The process must not be running another one.
    pub fn send(&mut self, call: &ScriptCall) -> io::Result<()> {
        let frame = call_frame(call);
        let begun = Instant::now();
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match self.input.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = SEND_MAX.saturating_sub(begun.elapsed());
                    if left.is_zero() {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    wait(&mut [PollFd::new(&self.input, PollFlags::OUT)], Some(left))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for the answer for this time at most.
    pub fn wait_for_answer(&mut self, tenant: TenantId, within: Duration) -> io::Result<Option<ScriptAnswer>> {
        wait(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(within))?;
        self.take_answer(tenant)
    }

    /// Reads the answer. Returns `None` if it is not complete yet.
    pub fn take_answer(&mut self, tenant: TenantId) -> io::Result<Option<ScriptAnswer>> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.output.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if let Some((answer, cpu)) = answer_of(&self.received)? {
                self.received.clear();
                self.cpu_before = cpu;
                match &answer.result {
                    // The process drops a realm whose script exceeded a limit.
                    Err(ScriptError::Limit(_)) => drop(self.known.remove(&tenant)),
                    _ if self.known.len() >= REALMS_MAX => self.known.clear(),
                    _ => drop(self.known.insert(tenant)),
                }
                return Ok(Some(answer));
            }
        }
    }
}

/// Waits until one of the files is ready. Without a time it waits as long as necessary.
pub fn wait(files: &mut [PollFd<'_>], within: Option<Duration>) -> io::Result<()> {
    let time = within.map(|within| Timespec {
        tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: within.subsec_nanos().into(),
    });
    match poll(files, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn call_frame(call: &ScriptCall) -> Vec<u8> {
    let parts = [&*call.source, &call.data, &call.metadata];
    let length = 16 + 4 * parts.len() + parts.iter().map(|part| part.len()).sum::<usize>() + call.kind.len();
    let mut frame = Vec::with_capacity(4 + length);
    let number = |frame: &mut Vec<u8>, length: usize| {
        frame.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    };
    number(&mut frame, length);
    frame.extend_from_slice(&call.tenant.0.0);
    for part in parts {
        number(&mut frame, part.len());
    }
    for part in parts {
        frame.extend_from_slice(part.as_bytes());
    }
    frame.extend_from_slice(call.kind.as_bytes());
    frame
}

fn call_of(frame: &[u8]) -> Option<ScriptCall> {
    let (tenant, rest) = frame.split_first_chunk::<16>()?;
    let (lengths, mut rest) = rest.split_first_chunk::<12>()?;
    let mut next = |index: usize| {
        let length = lengths[4 * index..].first_chunk::<4>()?;
        let (part, others) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = others;
        std::str::from_utf8(part).ok()
    };
    let (source, data, metadata) = (next(0)?, next(1)?, next(2)?);
    Some(ScriptCall {
        tenant: TenantId(Uuid(*tenant)),
        source: source.into(),
        data: data.to_owned(),
        metadata: metadata.to_owned(),
        kind: std::str::from_utf8(rest).ok()?.to_owned(),
    })
}

/// `cpu` is the CPU time of the process.
fn answer_frame(answer: &ScriptAnswer, cpu: Duration) -> Vec<u8> {
    let too_long = || {
        (
            FAILED,
            format!("the script returned more than {RESULT_BYTES_MAX} bytes"),
        )
    };
    let (kind, text) = match &answer.result {
        Ok(text) if text.len() > RESULT_BYTES_MAX => too_long(),
        Ok(text) => (RETURNED, text.clone()),
        Err(ScriptError::Limit(text)) => (OVER_LIMIT, text.clone()),
        Err(error) => (FAILED, error.to_string()),
    };
    let text = &text[..text.floor_char_boundary(RESULT_BYTES_MAX)];
    let mut frame = Vec::with_capacity(21 + text.len());
    frame.extend_from_slice(&u32::try_from(17 + text.len()).unwrap_or(u32::MAX).to_le_bytes());
    for time in [answer.cpu, cpu] {
        frame.extend_from_slice(&u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).to_le_bytes());
    }
    frame.push(kind);
    frame.extend_from_slice(text.as_bytes());
    frame
}

/// Returns the answer and the CPU time of the process, or `None` if the answer is not complete.
fn answer_of(received: &[u8]) -> io::Result<Option<(ScriptAnswer, Duration)>> {
    let Some((length, rest)) = received.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > ANSWER_BYTES_MAX || rest.len() > length {
        return Err(ErrorKind::InvalidData.into());
    }
    if rest.len() < length {
        return Ok(None);
    }
    let parse = || {
        let (nanos, rest) = rest.split_first_chunk::<8>()?;
        let (all_nanos, rest) = rest.split_first_chunk::<8>()?;
        let (kind, text) = rest.split_first()?;
        let text = std::str::from_utf8(text).ok()?.to_owned();
        let result = match *kind {
            RETURNED => Ok(text),
            FAILED => Err(ScriptError::Failed(text)),
            OVER_LIMIT => Err(ScriptError::Limit(text)),
            _ => return None,
        };
        let cpu = Duration::from_nanos(u64::from_le_bytes(*nanos));
        let all_cpu = Duration::from_nanos(u64::from_le_bytes(*all_nanos));
        Some((ScriptAnswer { result, cpu }, all_cpu))
    };
    parse().map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Runs scripts until the input is closed: the main function of a process.
pub fn run_worker() -> io::Result<()> {
    let _ = set_no_new_privs(true);
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    thread::Builder::new()
        .name("watch".to_owned())
        .spawn(exit_with_server)?;
    let mut input = io::stdin().lock();
    let mut output = io::stdout().lock();
    let mut frame = Vec::new();
    loop {
        let mut length = [0; 4];
        match input.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > CALL_BYTES_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        frame.resize(length, 0);
        input.read_exact(&mut frame)?;
        let call = call_of(&frame).ok_or(ErrorKind::InvalidData)?;
        let answer = run_in_thread(&call);
        output.write_all(&answer_frame(&answer, cpu_time()))?;
        output.flush()?;
    }
}

/// Ends this process when the server has ended, even while a script cannot be interrupted.
fn exit_with_server() {
    let input = io::stdin();
    loop {
        // Without events the call returns only if the pipe's other end is closed.
        let mut files = [PollFd::new(&input, PollFlags::empty())];
        if wait(&mut files, None).is_err() || !files[0].revents().is_empty() {
            std::process::exit(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_written() {
        let call = ScriptCall {
            tenant: TenantId(Uuid([7; 16])),
            source: "(function() {})".into(),
            data: "{\"ä\":1}".to_owned(),
            metadata: "{}".to_owned(),
            kind: "POST_TELEMETRY_REQUEST".to_owned(),
        };
        let frame = call_frame(&call);
        assert_eq!(
            u32::from_le_bytes(*frame.first_chunk().unwrap()) as usize,
            frame.len() - 4
        );
        assert_eq!(call_of(&frame[4..]).unwrap(), call);
        for cut in 4..frame.len() - call.kind.len() {
            assert!(call_of(&frame[4..cut]).is_none(), "{cut}");
        }
        for result in [
            Ok("1".to_owned()),
            Err(ScriptError::Failed("no".to_owned())),
            Err(ScriptError::Limit("long".to_owned())),
        ] {
            let answer = ScriptAnswer {
                result,
                cpu: Duration::from_nanos(123_456),
            };
            let frame = answer_frame(&answer, Duration::from_secs(5));
            for cut in 0..frame.len() {
                assert_eq!(answer_of(&frame[..cut]).unwrap(), None);
            }
            assert_eq!(answer_of(&frame).unwrap(), Some((answer, Duration::from_secs(5))));
        }
    }

    #[test]
    fn invalid_answers_are_errors() {
        assert!(answer_of(&u32::MAX.to_le_bytes()).is_err());
        assert!(
            answer_of(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]).is_err(),
            "an unknown kind"
        );
        assert!(answer_of(&[1, 0, 0, 0, 0]).is_err(), "too short");
        assert!(answer_of(&[0, 0, 0, 0, 0]).is_err(), "longer than it says");
    }
}
