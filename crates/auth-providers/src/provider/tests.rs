//! Questions to a source that the test answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use auth::Password;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::*;
use crate::source::{PasswordCheck, SourceFuture};

type Answer = Result<SourceAnswer<'static>, SourceError>;

/// A question that the test has to answer.
struct Question {
    user_name: String,
    answer: oneshot::Sender<Answer>,
}

/// Ignores clients without a user name. Passes all other questions to the test.
struct TestSource {
    questions: mpsc::UnboundedSender<Question>,
    asked: AtomicUsize,
}

impl LoginSource for TestSource {
    fn name(&self) -> &'static str {
        "test"
    }

    fn question(&self, credentials: &Credentials) -> Option<QuestionKey> {
        let user_name = credentials.user_name.as_ref()?;
        let password = credentials.password.as_ref().map(Password::expose);
        Some(QuestionKey::of(&[user_name.as_bytes(), password.unwrap_or_default()]))
    }

    fn ask<'a>(&'a self, credentials: &'a Credentials) -> SourceFuture<'a> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let (answer, receiver) = oneshot::channel();
            let user_name = credentials.user_name.clone().unwrap_or_default();
            self.questions
                .send(Question { user_name, answer })
                .expect("the test waits");
            // Without an answer of the test, only the time limit ends the question.
            match receiver.await {
                Ok(answer) => answer,
                Err(_) => std::future::pending().await,
            }
        })
    }
}

struct Test {
    provider: Arc<SourceProvider<TestSource>>,
    questions: mpsc::UnboundedReceiver<Question>,
}

/// A time that no test reaches.
const LONG: Duration = Duration::from_secs(3600);

fn limits() -> SourceLimits {
    SourceLimits {
        timeout: LONG,
        max_concurrent: 2,
        max_waiting: 2,
        cache_size: 100,
        cache_allowed: LONG,
        cache_denied: LONG,
        on_failure: OnFailure::Deny,
    }
}

fn run(limits: SourceLimits, test: impl AsyncFnOnce(Test)) {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (sender, questions) = mpsc::unbounded_channel();
    let source = TestSource {
        questions: sender,
        asked: AtomicUsize::new(0),
    };
    let provider = SourceProvider::new(source, limits);
    runtime.block_on(test(Test { provider, questions }));
}

impl Test {
    fn client(&self, user_name: &str) -> JoinHandle<ProviderOutcome> {
        tokio::spawn(
            self.provider
                .clone()
                .authenticate(Arc::new(credentials(Some(user_name)))),
        )
    }

    /// A client that can close its connection, which the function does.
    fn client_that_leaves(&self, user_name: &str) -> (JoinHandle<ProviderOutcome>, impl FnOnce() + use<>) {
        let (client, leave) = AskingClient::new();
        let question = self
            .provider
            .clone()
            .authenticate(Arc::new(credentials(Some(user_name))));
        (tokio::spawn(client.ask(question)), leave)
    }

    /// Waits for the next question.
    async fn question(&mut self) -> Question {
        self.questions.recv().await.expect("the provider lives")
    }

    fn now(&self, user_name: &str) -> Option<&'static str> {
        let outcome = self.provider.authenticate_now(&credentials(Some(user_name)));
        outcome.map(|outcome| word(&outcome))
    }

    /// Runs the other tasks of the thread until the counters are as expected.
    async fn until(&self, is_met: impl Fn(SourceStats) -> bool) {
        while !is_met(self.provider.stats()) {
            tokio::task::yield_now().await;
        }
    }

    fn asked(&self) -> usize {
        self.provider.source.asked.load(Ordering::Relaxed)
    }
}

fn credentials(user_name: Option<&str>) -> Credentials {
    Credentials {
        client_id: "c1".to_owned(),
        user_name: user_name.map(str::to_owned),
        password: Some(Password::new("secret")),
        address: [192, 0, 2, 7].into(),
        certificate_common_name: None,
        certificate_subject: None,
        action: None,
    }
}

fn word(outcome: &ProviderOutcome) -> &'static str {
    match outcome {
        ProviderOutcome::Allow(_) => "allow",
        ProviderOutcome::Deny(DenyReason::Unavailable) => "unavailable",
        ProviderOutcome::Deny(DenyReason::Expired) => "expired",
        ProviderOutcome::Deny(_) => "deny",
        ProviderOutcome::Ignore => "ignore",
    }
}

async fn result(client: JoinHandle<ProviderOutcome>) -> &'static str {
    word(&client.await.expect("the client is not cancelled"))
}

/// Runs the other tasks of the thread until each has nothing to do.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn allow() -> Answer {
    decided(ProviderOutcome::Allow(Box::new(Login::new(false))))
}

fn decided(outcome: ProviderOutcome) -> Answer {
    Ok(outcome.into())
}

fn failed() -> Answer {
    Err(SourceError::Failed("no route".to_owned()))
}

fn answer(question: Question, answer: Answer) {
    // The client may be gone.
    let _ = question.answer.send(answer);
}

#[test]
fn answers_are_cached_and_name_the_provider() {
    run(limits(), async |mut test| {
        for (user_name, reply, expected) in [
            ("a", allow(), "allow"),
            ("d", decided(ProviderOutcome::Deny(DenyReason::WrongPassword)), "deny"),
            ("i", decided(ProviderOutcome::Ignore), "ignore"),
        ] {
            assert_eq!(test.now(user_name), None);
            let client = test.client(user_name);
            answer(test.question().await, reply);
            assert_eq!(result(client).await, expected);
            assert_eq!(test.now(user_name), Some(expected));
            assert_eq!(result(test.client(user_name)).await, expected);
        }
        let login = test.client("a").await.expect("not cancelled");
        assert!(matches!(login, ProviderOutcome::Allow(login) if login.provider == Some("test")));
        let stats = test.provider.stats();
        assert_eq!(
            (stats.allowed, stats.denied, stats.ignored, stats.cache_hits),
            (1, 1, 1, 7)
        );
        assert_eq!(test.asked(), 3);
    });
}

#[test]
fn credentials_for_other_providers_are_ignored_without_a_question() {
    run(limits(), async |test| {
        let other = credentials(None);
        assert!(matches!(
            test.provider.authenticate_now(&other),
            Some(ProviderOutcome::Ignore)
        ));
        let outcome = test.provider.clone().authenticate(Arc::new(other)).await;
        assert!(matches!(outcome, ProviderOutcome::Ignore));
        assert_eq!((test.asked(), test.provider.stats()), (0, SourceStats::default()));
    });
}

#[test]
fn an_answer_without_a_decision_is_not_cached() {
    run(limits(), async |mut test| {
        let client = test.client("a");
        answer(
            test.question().await,
            decided(ProviderOutcome::Deny(DenyReason::Unavailable)),
        );
        assert_eq!(result(client).await, "unavailable");
        assert_eq!(test.now("a"), None);
    });
}

#[test]
fn an_expired_login_is_denied() {
    run(limits(), async |mut test| {
        let client = test.client("a");
        let login = Login {
            expires_at: Some(SystemTime::now()),
            ..Login::new(false)
        };
        answer(test.question().await, decided(ProviderOutcome::Allow(Box::new(login))));
        assert_eq!(result(client).await, "expired");
    });
}

#[test]
fn equal_questions_are_asked_once() {
    let without_cache = SourceLimits {
        cache_size: 0,
        ..limits()
    };
    run(without_cache, async |mut test| {
        let clients: Vec<_> = (0..2000).map(|_| test.client("a")).collect();
        let question = test.question().await;
        settle().await;
        answer(question, allow());
        for client in clients {
            assert_eq!(result(client).await, "allow");
        }
        let stats = test.provider.stats();
        assert_eq!((test.asked(), stats.allowed, stats.shared), (1, 1, 1999));
        assert!(test.provider.lock().open.is_empty());
    });
}

#[test]
fn a_client_that_goes_leaves_its_question_to_another_one() {
    run(limits(), async |mut test| {
        let first = test.client("a");
        let unanswered = test.question().await;
        let others = [test.client("a"), test.client("a")];
        settle().await;
        assert_eq!(test.asked(), 1);
        first.abort();
        let question = test.question().await;
        drop(unanswered);
        answer(question, allow());
        for client in others {
            assert_eq!(result(client).await, "allow");
        }
        assert_eq!(test.asked(), 2);
        let stats = test.provider.stats();
        assert_eq!((stats.in_progress, stats.waiting), (0, 0));
    });
}

#[test]
fn a_failure_reaches_all_clients_of_the_question_and_is_not_cached() {
    run(limits(), async |mut test| {
        let clients = [test.client("a"), test.client("a")];
        let question = test.question().await;
        settle().await;
        answer(question, failed());
        for client in clients {
            assert_eq!(result(client).await, "unavailable");
        }
        assert_eq!((test.asked(), test.provider.stats().failures), (1, 1));
        assert!(test.provider.stats().is_failing);
        assert_eq!(test.now("a"), None);
        let next = test.client("a");
        answer(test.question().await, allow());
        assert_eq!(result(next).await, "allow");
        assert!(!test.provider.stats().is_failing);
    });
}

#[test]
fn the_operator_decides_about_failures() {
    for (on_failure, expected) in [
        (OnFailure::Deny, "unavailable"),
        (OnFailure::Ignore, "ignore"),
        (OnFailure::Allow, "allow"),
    ] {
        run(SourceLimits { on_failure, ..limits() }, async |mut test| {
            let client = test.client("a");
            answer(test.question().await, failed());
            let outcome = client.await.expect("not cancelled");
            assert_eq!(word(&outcome), expected);
            if let ProviderOutcome::Allow(login) = outcome {
                assert!(!login.is_superuser && login.provider == Some("test"));
                assert!(login.is_unchecked);
            }
            assert_eq!(test.now("a"), None);
        });
    }
}

#[test]
fn a_question_without_an_answer_ends_at_the_time_limit() {
    let short = SourceLimits {
        timeout: Duration::from_millis(1),
        ..limits()
    };
    run(short, async |mut test| {
        let clients = [test.client("a"), test.client("b")];
        for client in clients {
            assert_eq!(result(client).await, "unavailable");
        }
        assert_eq!(test.provider.stats().timeouts, 2);
        assert_eq!(test.provider.permits.available_permits(), 2);
        test.question().await;
    });
}

/// Otherwise clients that ask many questions would cause failures, and `on_failure` would admit others.
#[test]
fn the_wait_for_a_turn_is_part_of_the_time_limit() {
    let limits = SourceLimits {
        timeout: Duration::from_secs(4),
        max_concurrent: 1,
        on_failure: OnFailure::Allow,
        ..limits()
    };
    run(limits, async |mut test| {
        let started = Instant::now();
        let (first, second) = (test.client("a"), test.client("b"));
        let question = test.question().await;
        test.until(|stats| stats.waiting == 1).await;
        tokio::time::sleep(limits.timeout / 4).await;
        answer(question, allow());
        assert_eq!(result(first).await, "allow");
        // The source has only the rest of the time for this question. It has not failed.
        let unanswered = test.question().await;
        assert_eq!(result(second).await, "unavailable");
        let took = started.elapsed();
        assert!(took < limits.timeout * 5 / 4, "{took:?}");
        let stats = test.provider.stats();
        assert_eq!((stats.timeouts, stats.overloaded, stats.is_failing), (0, 1, false));
        drop(unanswered);
    });
}

/// Otherwise each question would have its turn just before its time limit, and none would have an answer.
#[test]
fn a_question_with_a_turn_has_half_of_the_time_limit() {
    let limits = SourceLimits {
        timeout: Duration::from_secs(4),
        max_concurrent: 1,
        on_failure: OnFailure::Allow,
        ..limits()
    };
    run(limits, async |mut test| {
        let started = Instant::now();
        let (first, second) = (test.client("a"), test.client("b"));
        let question = test.question().await;
        test.until(|stats| stats.waiting == 1).await;
        assert_eq!(result(second).await, "unavailable");
        let took = started.elapsed();
        assert!(took >= limits.timeout / 2 && took < limits.timeout, "{took:?}");
        answer(question, allow());
        assert_eq!(result(first).await, "allow");
        let stats = test.provider.stats();
        assert_eq!((test.asked(), stats.overloaded, stats.timeouts), (1, 1, 0));
    });
}

/// A client whose question was left by another client has only the rest of the time, too.
#[test]
fn a_question_that_was_left_is_no_failure_of_the_source() {
    let limits = SourceLimits {
        timeout: Duration::from_secs(1),
        on_failure: OnFailure::Allow,
        ..limits()
    };
    run(limits, async |mut test| {
        let first = test.client("a");
        let left = test.question().await;
        let second = test.client("a");
        settle().await;
        first.abort();
        let unanswered = test.question().await;
        assert_eq!(result(second).await, "unavailable");
        let stats = test.provider.stats();
        assert_eq!((stats.timeouts, stats.overloaded, stats.is_failing), (0, 1, false));
        drop((left, unanswered));
    });
}

#[test]
fn a_failing_source_also_fails_for_clients_that_waited() {
    let limits = SourceLimits {
        timeout: Duration::from_secs(2),
        max_concurrent: 1,
        on_failure: OnFailure::Ignore,
        ..limits()
    };
    run(limits, async |mut test| {
        let (first, second) = (test.client("a"), test.client("b"));
        let question = test.question().await;
        test.until(|stats| stats.waiting == 1).await;
        answer(question, failed());
        assert_eq!(result(first).await, "ignore");
        let unanswered = test.question().await;
        assert_eq!(result(second).await, "ignore");
        assert_eq!(test.provider.stats().timeouts, 1);
        drop(unanswered);
    });
}

#[test]
fn questions_wait_in_order_and_too_many_are_denied() {
    let allowing = SourceLimits {
        on_failure: OnFailure::Allow,
        ..limits()
    };
    run(allowing, async |mut test| {
        let (a, b) = (test.client("a"), test.client("b"));
        let (first, second) = (test.question().await, test.question().await);
        let c = test.client("c");
        test.until(|stats| stats.waiting == 1).await;
        let d = test.client("d");
        test.until(|stats| stats.waiting == 2).await;
        // Too many clients are no failure of the source, so `on_failure` does not admit them.
        assert_eq!(result(test.client("e")).await, "unavailable");
        assert_eq!(test.provider.stats().overloaded, 1);
        assert_eq!((test.asked(), test.provider.stats().in_progress), (2, 2));
        answer(first, allow());
        let third = test.question().await;
        assert_eq!(third.user_name, "c");
        answer(second, allow());
        let fourth = test.question().await;
        assert_eq!(fourth.user_name, "d");
        answer(fourth, allow());
        answer(third, allow());
        for client in [a, b, c, d] {
            assert_eq!(result(client).await, "allow");
        }
        let stats = test.provider.stats();
        assert_eq!((stats.allowed, stats.in_progress, stats.waiting), (4, 0, 0));
    });
}

/// Clients can cause slow password checks and an overload, so these must not admit them.
#[test]
fn password_checks_are_no_failures_of_the_source() {
    let limits = SourceLimits {
        timeout: Duration::from_millis(200),
        max_concurrent: 1,
        on_failure: OnFailure::Allow,
        ..limits()
    };
    for (checked, expected) in [
        (Ok(ProviderOutcome::Deny(DenyReason::WrongPassword)), "deny"),
        (Err(Overloaded), "unavailable"),
    ] {
        run(limits, async |mut test| {
            let (end, ended) = oneshot::channel();
            let client = test.client("alice");
            let check: PasswordCheck = Box::pin(async { ended.await.expect("the test ends the check") });
            answer(test.question().await, Ok(SourceAnswer::PasswordCheck(check)));
            test.until(|stats| stats.in_progress == 0).await;
            tokio::time::sleep(limits.timeout * 2).await;
            // The check does not delay questions.
            let other = test.client("bob");
            answer(test.question().await, allow());
            assert_eq!(result(other).await, "allow");
            assert!(!client.is_finished());
            end.send(checked).expect("the client waits");
            assert_eq!(result(client).await, expected);
            let stats = test.provider.stats();
            assert_eq!((stats.failures, stats.timeouts, stats.is_failing), (0, 0, false));
            assert_eq!(stats.overloaded, u64::from(expected == "unavailable"));
        });
    }
}

#[test]
fn a_client_that_leaves_gives_up_its_place() {
    run(limits(), async |mut test| {
        let (a, b) = (test.client("a"), test.client("b"));
        let (first, second) = (test.question().await, test.question().await);
        let (c, leave) = test.client_that_leaves("c");
        test.until(|stats| stats.waiting == 1).await;
        // A client with the same question, and one that waits with it.
        let same = test.client("c");
        let (with_it, other_leaves) = test.client_that_leaves("c");
        settle().await;
        other_leaves();
        assert_eq!(result(with_it).await, "unavailable");
        leave();
        assert_eq!(result(c).await, "unavailable");
        // The other client waits in its place.
        test.until(|stats| stats.waiting == 1).await;
        answer(first, allow());
        let third = test.question().await;
        assert_eq!(third.user_name, "c");
        answer(third, allow());
        answer(second, allow());
        for client in [a, b, same] {
            assert_eq!(result(client).await, "allow");
        }
        let stats = test.provider.stats();
        assert_eq!(
            (test.asked(), stats.in_progress, stats.waiting, stats.overloaded),
            (3, 0, 0, 0)
        );
        assert!(test.provider.lock().open.is_empty());
    });
}

/// Otherwise clients that disconnect could send more questions at a time than allowed.
#[test]
fn a_question_that_was_sent_is_answered() {
    run(limits(), async |mut test| {
        let (client, leave) = test.client_that_leaves("a");
        let question = test.question().await;
        leave();
        settle().await;
        assert!(!client.is_finished());
        assert_eq!(test.provider.stats().in_progress, 1);
        answer(question, allow());
        assert_eq!(result(client).await, "allow");
        assert_eq!(test.now("a"), Some("allow"));
    });
}
