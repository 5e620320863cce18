//! Asks a [`LoginSource`] with limits: a time limit, a number of questions at a time, and a cache of answers.
//!
//! Equal questions are asked once at a time; all clients with this question get the answer. If the asking client is
//! gone before the question is sent, one of the others asks. A failure is never cached: [`OnFailure`] decides about the
//! clients of this question, and the next client asks again.
//!
//! The lock is held only to look up and to store an answer, so [`RemoteProvider::authenticate_now`] does not block.

mod cache;
mod examined;
mod failures;
mod stats;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use auth::{Credentials, DenyReason, Login, ProviderFuture, ProviderOutcome, RemoteProvider};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant as TokioInstant, timeout_at};

use crate::asking_client::AskingClient;
use crate::source::{LoginSource, Overloaded, QuestionKey, SourceAnswer, SourceError};
use cache::{AnswerCache, CacheLimits};
pub use examined::{AnswerOrigin, Examined, ExaminedFuture};
use failures::FailureLog;
pub use failures::SourceFailure;
use stats::Counters;
pub use stats::{SourceStats, WatchedProvider};

/// Limits of the questions to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimits {
    /// Maximum time of a question, including the wait for its turn, which takes at most half of it.
    pub timeout: Duration,
    /// Maximum number of questions at a time. At least 1.
    pub max_concurrent: usize,
    /// Maximum number of questions that wait for one of these. Further ones are denied.
    pub max_waiting: usize,
    /// Maximum number of cached answers. Denials occupy at most a quarter of them.
    pub cache_size: usize,
    /// How long an answer that allows is valid. Zero: answers are not cached.
    pub cache_allowed: Duration,
    /// How long an answer that denies or ignores is valid.
    pub cache_denied: Duration,
    pub on_failure: OnFailure,
}

/// Decision about a client if the source fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    #[default]
    Deny,
    /// The next provider decides.
    Ignore,
    /// The client is admitted without a check.
    Allow,
}

/// The outcome without a decision, and for a client that has closed its connection.
const UNAVAILABLE: ProviderOutcome = ProviderOutcome::Deny(DenyReason::Unavailable);

/// A source as a provider of a chain.
pub struct SourceProvider<S> {
    source: S,
    limits: SourceLimits,
    state: Mutex<SourceState>,
    /// One permit per question at a time. It is never closed.
    permits: Semaphore,
    counters: Counters,
}

struct SourceState {
    cache: AnswerCache,
    /// Questions without an answer.
    open: HashMap<QuestionKey, watch::Receiver<Option<ProviderOutcome>>>,
    failures: FailureLog,
}

/// The next step for a client with a question.
enum NextStep<'a, S: LoginSource> {
    Use(ProviderOutcome),
    Ask(OpenQuestion<'a, S>),
    /// Another client asks the same question.
    Await(watch::Receiver<Option<ProviderOutcome>>),
}

/// A question that a client asks. If it is dropped without an answer, another client asks.
struct OpenQuestion<'a, S: LoginSource> {
    provider: &'a SourceProvider<S>,
    key: QuestionKey,
    answer: watch::Sender<Option<ProviderOutcome>>,
}

/// Result of a question.
enum Asked {
    Answered(ProviderOutcome),
    /// The text is for the operator.
    Failed(String),
    /// An answer that cannot be used. The client is denied.
    Invalid(String),
    /// Too many questions or password checks wait.
    Overloaded,
}

/// The client has closed its connection, so the question is not asked.
struct ClientGone;

/// The time that a client has for its question.
struct QuestionTime {
    /// The question waits for its turn until then, at half of the time. Without this limit, the oldest question would
    /// have the next turn just before its time is over. With too many clients, no question would have an answer.
    turn_until: TokioInstant,
    until: TokioInstant,
    /// A part of the time is over, because the client has waited for others.
    has_waited: bool,
}

impl QuestionTime {
    fn new(limit: Duration) -> QuestionTime {
        let now = TokioInstant::now();
        QuestionTime {
            turn_until: now + limit / 2,
            until: now + limit,
            has_waited: false,
        }
    }
}

impl<S: LoginSource> SourceProvider<S> {
    pub fn new(source: S, limits: SourceLimits) -> Arc<SourceProvider<S>> {
        Arc::new(SourceProvider {
            source,
            limits,
            state: Mutex::new(SourceState {
                cache: AnswerCache::new(CacheLimits {
                    size: limits.cache_size,
                    allowed: limits.cache_allowed,
                    denied: limits.cache_denied,
                }),
                open: HashMap::new(),
                failures: FailureLog::default(),
            }),
            permits: Semaphore::new(limits.max_concurrent.clamp(1, Semaphore::MAX_PERMITS)),
            counters: Counters::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, SourceState> {
        // Every update leaves the state valid, so a panic cannot leave it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn decide(&self, credentials: &Credentials) -> Examined {
        let started = Instant::now();
        let of = |outcome, origin| Examined::new(outcome, origin, started);
        let Some(key) = self.source.question(credentials) else {
            return of(ProviderOutcome::Ignore, AnswerOrigin::NotForSource);
        };
        let mut time = QuestionTime::new(self.limits.timeout);
        loop {
            match self.next_step(key) {
                NextStep::Use(outcome) => return of(outcome, AnswerOrigin::Cached),
                NextStep::Ask(question) => {
                    let Ok(asked) = self.ask(credentials, &mut time).await else {
                        // Without an answer: another client with this question asks.
                        return of(UNAVAILABLE, AnswerOrigin::Overloaded);
                    };
                    let mut judged = self.judge(asked);
                    let error = judged.error.take();
                    let origin = judged.origin;
                    return Examined {
                        error,
                        ..of(question.close(judged), origin)
                    };
                }
                NextStep::Await(mut answer) => {
                    let answered = async { answer.wait_for(Option::is_some).await.map(|outcome| outcome.clone()) };
                    let answered = tokio::select! {
                        biased;
                        answered = timeout_at(time.until, answered) => answered,
                        () = AskingClient::current().gone() => return of(UNAVAILABLE, AnswerOrigin::Overloaded),
                    };
                    match answered {
                        Ok(Ok(Some(outcome))) => {
                            self.counters.shared.add(1);
                            return of(outcome, AnswerOrigin::Shared);
                        }
                        // The client that asked is gone.
                        Ok(_) => time.has_waited = true,
                        Err(_) => return of(self.judge(Asked::Overloaded).outcome, AnswerOrigin::Overloaded),
                    }
                }
            }
        }
    }

    fn next_step(&self, key: QuestionKey) -> NextStep<'_, S> {
        let mut state = self.lock();
        if let Some(outcome) = state.cache.get(&key, Instant::now(), SystemTime::now()) {
            self.counters.cache_hits.add(1);
            return NextStep::Use(outcome);
        }
        match state.open.get(&key) {
            Some(answer) => NextStep::Await(answer.clone()),
            None => {
                let (answer, receiver) = watch::channel(None);
                state.open.insert(key, receiver);
                NextStep::Ask(OpenQuestion {
                    provider: self,
                    key,
                    answer,
                })
            }
        }
    }

    async fn ask(&self, credentials: &Credentials, time: &mut QuestionTime) -> Result<Asked, ClientGone> {
        let permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                let Some(_waiting) = self.counters.waiting.enter_below(self.limits.max_waiting) else {
                    return Ok(Asked::Overloaded);
                };
                time.has_waited = true;
                let acquired = tokio::select! {
                    biased;
                    () = AskingClient::current().gone() => return Err(ClientGone),
                    acquired = timeout_at(time.turn_until, self.permits.acquire()) => acquired,
                };
                match acquired {
                    Ok(permit) => permit.expect("the semaphore is never closed"),
                    // Not a failure of the source: clients that cause it must not choose `on_failure`.
                    Err(_) => return Ok(Asked::Overloaded),
                }
            }
        };
        let in_progress = self.counters.in_progress.enter();
        let started = Instant::now();
        let answer = timeout_at(time.until, self.source.ask(credentials)).await;
        drop(permit);
        drop(in_progress);
        self.counters.answer_took(started.elapsed());
        Ok(match answer {
            Ok(Ok(SourceAnswer::Decided(outcome))) => Asked::Answered(outcome),
            Ok(Ok(SourceAnswer::PasswordCheck(check))) => match check.await {
                Ok(outcome) => Asked::Answered(outcome),
                Err(Overloaded) => Asked::Overloaded,
            },
            Ok(Err(SourceError::Failed(reason))) => {
                self.counters.failures.add(1);
                Asked::Failed(reason)
            }
            Ok(Err(SourceError::Invalid(reason))) => {
                self.counters.failures.add(1);
                Asked::Invalid(reason)
            }
            Err(_) => self.timed_out(time),
        })
    }

    /// Other clients can cause a wait, so a question that had only the rest of the time does not make a working source
    /// look slow. If the source fails anyway, `on_failure` decides about these clients too.
    fn timed_out(&self, time: &QuestionTime) -> Asked {
        if time.has_waited && !self.lock().failures.is_failing() {
            return Asked::Overloaded;
        }
        self.counters.timeouts.add(1);
        Asked::Failed(format!("no answer within {} ms", self.limits.timeout.as_millis()))
    }

    /// Counts and logs the result of a question.
    fn judge(&self, asked: Asked) -> Judged {
        let (name, role) = (self.source.name(), self.source.role());
        match asked {
            Asked::Answered(outcome) => {
                let ended = self.lock().failures.succeeded();
                if let Some(failed) = ended {
                    tracing::info!(provider = name, failed, "{role} works again");
                }
                let outcome = self.checked(outcome);
                self.counters.answered(&outcome).add(1);
                Judged {
                    // The source has answered, but not decided.
                    is_cached: !matches!(outcome, ProviderOutcome::Deny(DenyReason::Unavailable)),
                    outcome,
                    origin: AnswerOrigin::Asked,
                    error: None,
                }
            }
            Asked::Failed(error) => self.failed(error, self.limits.on_failure),
            Asked::Invalid(error) => self.failed(error, OnFailure::Deny),
            Asked::Overloaded => {
                self.counters.overloaded.add(1);
                Judged {
                    outcome: UNAVAILABLE,
                    is_cached: false,
                    origin: AnswerOrigin::Overloaded,
                    error: None,
                }
            }
        }
    }

    /// Logs a failure, at most one line per interval, and decides about its clients.
    fn failed(&self, error: String, on_failure: OnFailure) -> Judged {
        let line = self.lock().failures.failed(Instant::now(), SystemTime::now(), &error);
        if let Some(failed) = line {
            let (name, role) = (self.source.name(), self.source.role());
            let clients = match on_failure {
                OnFailure::Deny => "denied",
                OnFailure::Ignore => "left to the next provider",
                OnFailure::Allow => "admitted without a check",
            };
            tracing::warn!(provider = name, error, failed, clients, "{role} failed");
        }
        Judged {
            outcome: self.on_failure(on_failure),
            is_cached: false,
            origin: AnswerOrigin::Asked,
            error: Some(error),
        }
    }

    /// Deletes all cached answers.
    pub fn clear_cache(&self) {
        self.lock().cache.clear();
    }

    /// Completes a login, and denies one that has expired.
    fn checked(&self, outcome: ProviderOutcome) -> ProviderOutcome {
        match outcome {
            ProviderOutcome::Allow(login) if login.expires_at.is_some_and(|at| at <= SystemTime::now()) => {
                ProviderOutcome::Deny(DenyReason::Expired)
            }
            ProviderOutcome::Allow(mut login) => {
                login.provider = Some(self.source.name());
                ProviderOutcome::Allow(login)
            }
            other => other,
        }
    }

    fn on_failure(&self, on_failure: OnFailure) -> ProviderOutcome {
        match on_failure {
            OnFailure::Deny => UNAVAILABLE,
            OnFailure::Ignore => ProviderOutcome::Ignore,
            OnFailure::Allow => self.checked(ProviderOutcome::Allow(Box::new(Login {
                is_unchecked: true,
                ..Login::new(false)
            }))),
        }
    }
}

struct Judged {
    outcome: ProviderOutcome,
    is_cached: bool,
    origin: AnswerOrigin,
    /// Set if the source has failed.
    error: Option<String>,
}

impl<S: LoginSource> OpenQuestion<'_, S> {
    /// Stores the answer and gives it to the waiting clients.
    fn close(self, judged: Judged) -> ProviderOutcome {
        if judged.is_cached {
            let mut state = self.provider.lock();
            let (now, time) = (Instant::now(), SystemTime::now());
            state.cache.insert(self.key, &judged.outcome, now, time);
            // With the answer in one step, so that no client asks again.
            state.open.remove(&self.key);
        }
        self.answer.send_replace(Some(judged.outcome.clone()));
        judged.outcome
    }
}

impl<S: LoginSource> Drop for OpenQuestion<'_, S> {
    fn drop(&mut self) {
        let mut state = self.provider.lock();
        // Another client may have asked the question again since it was closed.
        let is_own = |open: &watch::Receiver<_>| open.same_channel(&self.answer.subscribe());
        if state.open.get(&self.key).is_some_and(is_own) {
            state.open.remove(&self.key);
        }
    }
}

impl<S: LoginSource> RemoteProvider for SourceProvider<S> {
    fn authenticate(self: Arc<Self>, credentials: Arc<Credentials>) -> ProviderFuture {
        Box::pin(async move { self.decide(&credentials).await.outcome })
    }

    fn authenticate_now(&self, credentials: &Credentials) -> Option<ProviderOutcome> {
        let Some(key) = self.source.question(credentials) else {
            return Some(ProviderOutcome::Ignore);
        };
        let outcome = self.lock().cache.get(&key, Instant::now(), SystemTime::now())?;
        self.counters.cache_hits.add(1);
        Some(outcome)
    }
}

impl<S: LoginSource> WatchedProvider for SourceProvider<S> {
    fn name(&self) -> &'static str {
        self.source.name()
    }

    fn clear_cache(&self) {
        SourceProvider::clear_cache(self);
    }

    fn stats(&self) -> SourceStats {
        let state = self.lock();
        let (is_failing, cached) = (state.failures.is_failing(), state.cache.len());
        drop(state);
        self.counters.stats(is_failing, cached)
    }

    fn limits(&self) -> SourceLimits {
        self.limits
    }

    fn last_failure(&self) -> Option<SourceFailure> {
        self.lock().failures.last().cloned()
    }

    fn examine(self: Arc<Self>, credentials: Arc<Credentials>) -> ExaminedFuture {
        Box::pin(async move { self.decide(&credentials).await })
    }
}

#[cfg(test)]
mod tests;
