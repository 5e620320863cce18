//! When the next attempt may begin: `attempt.json`, so that a restart does not shorten a pause.
//!
//! The file is written before each attempt, too. A server that ends again and again during its attempts therefore waits
//! between them. A success deletes the file.
//!
//! Times are those of the wall clock, which may be wrong. A pause from the file is never longer than it was at first,
//! and never longer than the longest pause.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use connectors::{Backoff, RetryConfig};
use serde::{Deserialize, Serialize};

use super::AcmeConfig;
use super::client::RETRY_AFTER_MAX;
use super::failure::Failure;
use crate::{now_unix_ms, short_hash};

/// More failures do not change the pause.
const COUNTED_MAX: u32 = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttemptFile {
    /// Hash of the options. With other options, the first attempt does not wait, unless the authority demands it.
    options: String,
    directory: String,
    next_unix_ms: i64,
    pause_ms: u64,
    /// The authority demands the pause (`Retry-After`).
    is_demanded: bool,
    /// Failures in a row, by kind.
    rejected: u32,
    unreachable: u32,
    /// Attempts in a row that ended with the process.
    unfinished: u32,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The attempts since the last success.
pub struct Attempts<'a> {
    config: &'a AcmeConfig,
    file: AttemptFile,
}

impl<'a> Attempts<'a> {
    /// Reads the file. A damaged one counts as missing.
    pub fn read(config: &'a AcmeConfig) -> Attempts<'a> {
        let options = options(config);
        let mut file = match read(&path(config)) {
            Ok(file) => file.unwrap_or_default(),
            Err(reason) => {
                tracing::warn!(
                    reason,
                    "the time of the next attempt to obtain a certificate is unknown"
                );
                AttemptFile::default()
            }
        };
        let is_demanded = file.is_demanded && file.directory == config.directory;
        if file.options != options && !is_demanded {
            file = AttemptFile::default();
        }
        file.options = options;
        file.directory = config.directory.clone();
        Attempts { config, file }
    }

    /// The rest of the pause that an earlier run of the server has begun.
    pub fn rest(&self, now_unix_ms: i64) -> Duration {
        let left = u64::try_from(self.file.next_unix_ms.saturating_sub(now_unix_ms)).unwrap_or_default();
        let longest = match self.file.is_demanded {
            true => RETRY_AFTER_MAX,
            false => self.config.timing.longest_retry,
        };
        Duration::from_millis(left.min(self.file.pause_ms)).min(longest)
    }

    pub fn reason(&self) -> Option<&str> {
        self.file.reason.as_deref()
    }

    /// Call it before an attempt. After an error, the attempt must not begin.
    pub fn begin(&mut self) -> Result<(), Failure> {
        self.file.unfinished = self.file.unfinished.saturating_add(1);
        let pause = self.backoff(self.config.timing.first_retry_unreachable, self.file.unfinished);
        self.set_pause(pause, false);
        self.write().map_err(Failure::unwritten)
    }

    /// Returns the pause after a failure.
    pub fn failed(&mut self, failure: &Failure) -> Duration {
        let timing = &self.config.timing;
        let (first, count) = match failure.is_unreachable {
            true => (timing.first_retry_unreachable, &mut self.file.unreachable),
            false => (timing.first_retry_rejected, &mut self.file.rejected),
        };
        *count = count.saturating_add(1);
        let count = *count;
        let pause = self.backoff(first, count);
        // An authority that asks for patience may count early attempts against its limits.
        let demanded = failure.retry_after.unwrap_or_default();
        self.set_pause(pause.max(demanded), demanded > pause);
        self.file.unfinished = 0;
        self.file.reason = Some(failure.to_string());
        if let Err(reason) = self.write() {
            tracing::warn!(
                reason,
                "a restart of the server would shorten the pause before the next attempt"
            );
        }
        pause.max(demanded)
    }

    /// Forgets all failures.
    pub fn succeeded(&mut self) {
        self.file = AttemptFile {
            options: self.file.options.clone(),
            directory: self.file.directory.clone(),
            ..AttemptFile::default()
        };
        let path = path(self.config);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(file = %path.display(), %error, "cannot delete the file of the last attempts");
            }
            _ => {}
        }
    }

    fn set_pause(&mut self, pause: Duration, is_demanded: bool) {
        let pause_ms = pause.as_millis() as u64;
        let end = now_unix_ms().saturating_add(i64::try_from(pause_ms).unwrap_or(i64::MAX));
        (self.file.next_unix_ms, self.file.pause_ms, self.file.is_demanded) = (end, pause_ms, is_demanded);
    }

    fn backoff(&self, first: Duration, failures: u32) -> Duration {
        let mut backoff = Backoff::new(&RetryConfig {
            first_ms: first.as_millis() as u64,
            longest_ms: self.config.timing.longest_retry.as_millis() as u64,
            ..RetryConfig::default()
        });
        for _ in 1..failures.min(COUNTED_MAX) {
            backoff.pause();
        }
        backoff.pause()
    }

    fn write(&self) -> Result<(), String> {
        super::write_json(&path(self.config), &self.file)
    }
}

fn path(config: &AcmeConfig) -> PathBuf {
    config.files.join("attempt.json")
}

/// Options that an administrator changes to repair a failure.
fn options(config: &AcmeConfig) -> String {
    let external = config.external_account.as_ref().map(|external| &external.key_id);
    short_hash(&format!(
        "{} {:?} {:?} {:?} {} {:?} {external:?}",
        config.directory, config.domains, config.contact, config.challenge, config.bind, config.ca_file
    ))
}

fn read(path: &std::path::Path) -> Result<Option<AttemptFile>, String> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
            format!(
                "{} is damaged: line {}, column {}",
                path.display(),
                error.line(),
                error.column()
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AcmeTiming, ChallengeKind};
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    /// The directory is deleted with the value.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("tidewire-attempts-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Directory(path)
        }

        fn config(&self, domain: &str) -> AcmeConfig {
            AcmeConfig {
                directory: "https://ca.example/dir".to_owned(),
                domains: vec![domain.to_owned()],
                contact: Vec::new(),
                challenge: ChallengeKind::Http01,
                bind: ([127, 0, 0, 1], 80).into(),
                ca_file: None,
                external_account: None,
                files: self.0.clone(),
                timing: AcmeTiming::default(),
            }
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn rejected(retry_after: Option<Duration>) -> Failure {
        let mut failure = Failure::rejected("no".to_owned());
        failure.retry_after = retry_after;
        failure
    }

    #[test]
    fn restart_does_not_shorten_the_pause() {
        let directory = Directory::new("restart");
        let config = directory.config("a.example");
        let mut before = Attempts::read(&config);
        assert_eq!(before.rest(now_unix_ms()), Duration::ZERO);
        before.failed(&rejected(None));
        let pause = before.failed(&rejected(None));
        assert!(pause >= Duration::from_secs(480), "{pause:?}");
        let mut after = Attempts::read(&config);
        let rest = after.rest(now_unix_ms());
        assert!(rest <= pause && rest > pause - Duration::from_secs(60), "{rest:?}");
        assert_eq!(after.reason(), Some("no"));
        // The third pause, not the first one.
        assert!(after.failed(&rejected(None)) >= Duration::from_secs(960));
        // Other options are worth an attempt.
        let other = directory.config("b.example");
        assert_eq!(Attempts::read(&other).rest(now_unix_ms()), Duration::ZERO);
        after.succeeded();
        assert_eq!(Attempts::read(&config).rest(now_unix_ms()), Duration::ZERO);
    }

    #[test]
    fn pause_that_the_authority_demands_applies_to_other_options() {
        let directory = Directory::new("demanded");
        let config = directory.config("a.example");
        let pause = Attempts::read(&config).failed(&rejected(Some(Duration::from_secs(7200))));
        assert_eq!(pause, Duration::from_secs(7200));
        let mut other = directory.config("b.example");
        assert!(Attempts::read(&other).rest(now_unix_ms()) > Duration::from_secs(7000));
        other.directory = "https://other.example/dir".to_owned();
        assert_eq!(Attempts::read(&other).rest(now_unix_ms()), Duration::ZERO);
    }

    #[test]
    fn wrong_clock_never_makes_a_pause_longer() {
        let directory = Directory::new("clock");
        let config = directory.config("a.example");
        let mut attempts = Attempts::read(&config);
        let pause = attempts.failed(&rejected(None));
        let now = now_unix_ms();
        assert_eq!(attempts.rest(now - 1000 * HOUR_MS), pause);
        assert_eq!(attempts.rest(now + 1000 * HOUR_MS), Duration::ZERO);
        // A file with a pause that no server would begin.
        attempts.file.pause_ms = u64::MAX;
        attempts.file.next_unix_ms = i64::MAX;
        assert_eq!(attempts.rest(now), config.timing.longest_retry);
        attempts.file.is_demanded = true;
        assert_eq!(attempts.rest(now), RETRY_AFTER_MAX);
    }

    #[test]
    fn attempts_that_end_with_the_process_are_followed_by_pauses() {
        let directory = Directory::new("crash");
        let config = directory.config("a.example");
        let mut last = Duration::ZERO;
        for _ in 0..4 {
            let mut attempts = Attempts::read(&config);
            assert!(attempts.rest(now_unix_ms()) <= last);
            attempts.begin().unwrap();
            let rest = Attempts::read(&config).rest(now_unix_ms());
            assert!(rest > last, "{rest:?} after {last:?}");
            last = rest;
        }
        assert!(last > Duration::from_secs(180), "{last:?}");
        // Without a place for the file, no attempt begins.
        fs::create_dir_all(directory.0.join("attempt.json.new")).unwrap();
        let failure = Attempts::read(&config).begin().unwrap_err();
        assert!(
            failure.to_string().contains("cannot write") && failure.is_unreachable,
            "{failure}"
        );
    }
}
