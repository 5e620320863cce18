//! Runs the steps of a page in one bash, in network and process namespaces of its own.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::page::{Kind, Page, Step, matches};
use super::repository;
use crate::support::unique;

/// The error names the line of the page and the failure.
pub type Outcome = Result<(), String>;

/// Time limit of a step. The longest step starts Kafka; on a busy machine this takes more than a minute.
const STEP_LIMIT: Duration = Duration::from_secs(300);
/// Time limit for output of background processes after their step.
const OUTPUT_LIMIT: Duration = Duration::from_secs(10);

/// Script of the first process of the namespaces. It runs each step on request and reports its end.
const DRIVER: &str = r#"
ip link set lo up
exec >output 2>&1 </dev/null
PATH=$PWD/.book/bin:$PATH
book_number=0
trap 'printf "%s\n" "$BASH_COMMAND" >>.book/failed' ERR
while :; do
	until [ -e .book/run.$book_number ] || [ -e .book/server.$book_number ]; do sleep 0.01; done
	if [ -e .book/server.$book_number ]; then
		if [ -n "${book_server:-}" ]; then
			kill -- "-$book_server" || :
			while kill -0 -- "-$book_server" 2>/dev/null; do sleep 0.01; done
		fi
		# With job control the server has a process group of its own.
		set -m
		( trap - ERR; source .book/server.$book_number; : >.book/ended.$book_number ) &
		book_server=$!
		set +m
	else
		source .book/run.$book_number
	fi
	: >.book/done.$book_number
	book_number=$((book_number + 1))
done
"#;

/// Replaces `make`: `make run ARGS=…` starts the program under test.
const MAKE: &str = r#"#!/bin/bash
[ "$1" = run ] || { echo "make: only run is available here" >&2; exit 2; }
ARGS=${2#ARGS=}
eval "exec tidewire $ARGS"
"#;

/// Returns whether this machine allows namespaces and has the tool that brings up their loopback interface.
pub fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let status = namespaces()
            .args(["ip", "link", "set", "lo", "up"])
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    })
}

fn namespaces() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--map-root-user",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command
}

pub fn run(page: &Page) -> Outcome {
    let mut shell = Shell::start();
    if page.steps.first().is_some_and(|step| step.kind != Kind::Server) {
        shell.step(&Step {
            kind: Kind::Server,
            commands: "tidewire\n".to_owned(),
            line: 0,
            output: Vec::new(),
        })?;
    }
    page.steps.iter().try_for_each(|step| shell.step(step))
}

struct Shell {
    directory: PathBuf,
    child: Child,
    next: usize,
}

impl Shell {
    fn start() -> Shell {
        let directory = std::env::temp_dir().join(unique(&format!("tidewire-book-{}", std::process::id())));
        let bin = directory.join(".book/bin");
        fs::create_dir_all(&bin).unwrap();
        symlink(env!("CARGO_BIN_EXE_tidewire"), bin.join("tidewire")).unwrap();
        symlink(repository().join("dev"), directory.join("dev")).unwrap();
        fs::write(directory.join("output"), "").unwrap();
        fs::write(bin.join("make"), MAKE).unwrap();
        make_executable(&bin.join("make"));
        let child = namespaces()
            .args(["bash", "-c", DRIVER])
            .current_dir(&directory)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Shell {
            directory,
            child,
            next: 0,
        }
    }

    fn step(&mut self, step: &Step) -> Outcome {
        let number = self.next;
        self.next += 1;
        let begin = self.raw_output().len();
        let kind = match step.kind {
            Kind::Run => "run",
            Kind::Server => "server",
        };
        // Renames the file into place, so that the driver never reads a partial file.
        fs::write(self.book("new"), &step.commands).unwrap();
        fs::rename(self.book("new"), self.book(&format!("{kind}.{number}"))).unwrap();
        let is_done = self.wait(STEP_LIMIT, |shell| shell.book(&format!("done.{number}")).exists());
        if !is_done {
            return Err(self.failure(step.line, "the block did not end", begin));
        }
        if let Ok(command) = fs::read_to_string(self.book("failed")) {
            return Err(self.failure(step.line, &format!("a command failed: {}", command.trim()), begin));
        }
        if step.kind == Kind::Server {
            let ended = self.book(&format!("ended.{number}"));
            self.wait(STEP_LIMIT, |shell| ended.exists() || is_ready(&shell.output(begin)));
            if ended.exists() || !is_ready(&self.output(begin)) {
                return Err(self.failure(step.line, "the server did not start", begin));
            }
        }
        self.wait(OUTPUT_LIMIT, |shell| missing(step, &shell.output(begin)).is_none());
        match missing(step, &self.output(begin)) {
            None => Ok(()),
            Some((line, text)) => Err(self.failure(*line, &format!("the output lacks `{text}`"), begin)),
        }
    }

    /// Waits for a condition. Returns whether it holds.
    fn wait(&self, limit: Duration, mut condition: impl FnMut(&Shell) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            if condition(self) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn book(&self, name: &str) -> PathBuf {
        self.directory.join(".book").join(name)
    }

    /// Returns the output of all processes of the page.
    fn raw_output(&self) -> Vec<u8> {
        fs::read(self.directory.join("output")).unwrap()
    }

    fn output(&self, begin: usize) -> String {
        String::from_utf8_lossy(&self.raw_output()[begin..]).into_owned()
    }

    fn failure(&self, line: usize, what: &str, begin: usize) -> String {
        let mut text = format!("line {line}: {what}\n");
        for line in self.output(begin).lines() {
            let _ = writeln!(text, "    {line}");
        }
        text
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // All processes of a process namespace end with its first process.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn is_ready(output: &str) -> bool {
    output
        .lines()
        .any(|line| line.contains(": ready ") || line.contains("\"ready\""))
}

/// Returns the first printed line that the output lacks.
fn missing<'a>(step: &'a Step, output: &str) -> Option<&'a (usize, String)> {
    let mut lines = output.lines();
    step.output
        .iter()
        .find(|(_, printed)| !lines.by_ref().any(|line| matches(printed, line)))
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
