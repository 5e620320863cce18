//! Questions to a service that ends them in unusual ways.

use std::sync::Mutex;
use std::time::Duration;

use auth::{Login, ProviderFuture};
use auth_providers::{AnswerOrigin, ExaminedFuture, OnFailure, SourceLimits, SourceStats};
use mqtt::QoS;

use super::*;

/// Allows topics below `open/`, and panics about others.
struct Panics;

impl RemoteProvider for Panics {
    fn authenticate(self: Arc<Self>, credentials: Arc<Credentials>) -> ProviderFuture {
        Box::pin(async move {
            let action = credentials.action.as_ref().expect("a question about an action");
            assert!(action.topic().starts_with("open/"), "a panic of the test");
            ProviderOutcome::Allow(Box::new(Login::new(false)))
        })
    }

    fn authenticate_now(&self, _: &Credentials) -> Option<ProviderOutcome> {
        None
    }
}

impl WatchedProvider for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn clear_cache(&self) {}

    fn stats(&self) -> SourceStats {
        SourceStats::default()
    }

    fn limits(&self) -> SourceLimits {
        SourceLimits {
            timeout: Duration::from_secs(1),
            max_concurrent: 1,
            max_waiting: 1,
            cache_size: 0,
            cache_allowed: Duration::ZERO,
            cache_denied: Duration::ZERO,
            on_failure: OnFailure::Deny,
        }
    }

    fn last_failure(&self) -> Option<SourceFailure> {
        None
    }

    fn examine(self: Arc<Self>, credentials: Arc<Credentials>) -> ExaminedFuture {
        Box::pin(async move {
            Examined {
                outcome: self.authenticate(credentials).await,
                origin: AnswerOrigin::Asked,
                time: Duration::ZERO,
                error: None,
            }
        })
    }
}

fn decide(topics: &[String], asking: AskingClient) -> Vec<(String, Decision)> {
    let http = Arc::new(Panics);
    let sources = AccessSources {
        order: vec![AccessSourceKind::Http],
        rules: Vec::new(),
        http: Some(HttpService {
            source: http.clone(),
            watched: http,
        }),
        watched: Vec::new(),
        is_remote: true,
        cache: Arc::new(DecisionCache::new(0, Duration::ZERO)),
        open_questions: OpenQuestions::default(),
    };
    let client = Arc::new(Credentials {
        client_id: "c".to_owned(),
        user_name: None,
        password: None,
        address: [127, 0, 0, 1].into(),
        certificate_common_name: None,
        certificate_subject: None,
        action: None,
    });
    let actions = topics.iter().map(|topic| RequestedAction::Publish {
        topic: topic.as_str().into(),
        qos: QoS::AtMostOnce,
        retain: false,
    });
    let decided = Mutex::new(Vec::new());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(
        asking.ask(sources.decide(&client, actions.collect(), |action, decision, _| {
            let decided_action = (action.topic().to_owned(), decision);
            decided
                .lock()
                .expect("no panic while it is locked")
                .push(decided_action);
        })),
    );
    let mut decided = decided.into_inner().expect("no panic while it was locked");
    decided.sort();
    decided
}

#[test]
fn each_action_is_decided_after_a_panic() {
    let mut topics: Vec<String> = (10..60).map(|number| format!("open/{number}")).collect();
    topics.push("panic".to_owned());
    topics.rotate_right(1);
    let decided = decide(&topics, AskingClient::default());
    topics.sort();
    let about: Vec<&String> = decided.iter().map(|(topic, _)| topic).collect();
    assert_eq!(about, topics.iter().collect::<Vec<_>>(), "each action has one decision");
    let last = decided.last().expect("there are decisions");
    assert_eq!(last, &("panic".to_owned(), Decision::Failed));
}

#[test]
fn actions_of_a_client_that_left_are_denied_without_questions() {
    let (client, leave) = AskingClient::new();
    leave();
    let topics = ["open/a", "open/b"].map(str::to_owned);
    let decided = decide(&topics, client);
    let expected = topics.map(|topic| (topic, Decision::Failed));
    assert_eq!(decided, expected);
}
