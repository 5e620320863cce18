//! The keys that are in use: fixed ones, or those of a server that publishes a key set.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use connectors::http::{HttpConnector, HttpConnectorConfig, HttpQuestion, UrlPart};
use tokio::sync::{Notify, Semaphore, watch};

use super::algorithm::Algorithm;
use super::jwks::{self, SetKey, Skipped};
use super::token::{TokenHeader, UnverifiedToken};
use crate::http::split_url;
use crate::provider::SourceFailure;

/// Maximum length of a key set.
const SET_BYTES_MAX: usize = 512 * 1024;
/// Time between the starts of two requests at least, so that tokens with invented key ids do not flood the server.
const REQUEST_GAP: Duration = Duration::from_secs(2);
/// Time until the next request after a failed one, which doubles up to `RETRY_MAX`.
const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Maximum number of logins that wait for a request.
const WAITING_MAX: usize = 1000;

/// Server with a key set.
#[derive(Clone, Debug)]
pub struct JwksConfig {
    /// The URL may have a query.
    pub server: HttpConnectorConfig,
    pub refresh_interval: Duration,
    /// Keys that the server has not confirmed for this time are not used any more.
    pub max_age: Option<Duration>,
    /// Time limit of a request, and of a login that waits for one.
    pub timeout: Duration,
}

/// Keys in use. A change replaces all of them.
#[derive(Debug)]
pub struct Keys {
    keys: Vec<SetKey>,
    /// Changes with the keys.
    pub generation: u64,
}

impl Keys {
    pub fn new(keys: Vec<SetKey>, generation: u64) -> Keys {
        Keys { keys, generation }
    }

    /// Returns whether the token is signed by one of the keys.
    pub fn have_signed(&self, token: &UnverifiedToken<'_>, header: &TokenHeader) -> bool {
        self.candidates(header)
            .any(|key| token.is_signed_by(&key.key, header.algorithm))
    }

    /// Returns whether a key may verify a token with this header.
    pub fn have_candidate(&self, header: &TokenHeader) -> bool {
        self.candidates(header).next().is_some()
    }

    /// A key without an id, such as one from a file, may have any id. A token without an id may be of any key.
    fn candidates(&self, header: &TokenHeader) -> impl Iterator<Item = &SetKey> {
        let is_named = |key: &SetKey| match (&header.key_id, &key.id) {
            (Some(wanted), Some(id)) => wanted == id,
            _ => true,
        };
        let keys = self.keys.iter().filter(move |key| is_named(key));
        keys.filter(|key| key.algorithms.contains(&header.algorithm))
    }
}

/// Where the keys come from.
pub enum KeySource {
    Fixed(Arc<Keys>),
    Remote(Arc<RemoteKeys>),
}

impl KeySource {
    /// Returns the keys, or `None` if there are none that may be used now.
    pub fn current(&self) -> Option<Arc<Keys>> {
        match self {
            KeySource::Fixed(keys) => Some(keys.clone()),
            KeySource::Remote(remote) => remote.current(Instant::now()),
        }
    }
}

/// Keys of a server. [`RemoteKeys::run`] requests them.
pub struct RemoteKeys {
    connector: HttpConnector,
    /// Path and query of the URL.
    target: String,
    config: JwksConfig,
    allowed: Vec<Algorithm>,
    state: RwLock<RemoteState>,
    /// Number of finished requests.
    finished: watch::Sender<u64>,
    wanted: Notify,
    is_requesting: AtomicBool,
    last_start: Mutex<Option<Instant>>,
    waiting: Semaphore,
}

#[derive(Default)]
struct RemoteState {
    keys: Option<Arc<Keys>>,
    /// Number of the last keys, also after they were withdrawn.
    generation: u64,
    /// The answer that the keys are from.
    answer: Vec<u8>,
    confirmed: Option<Instant>,
    skipped: BTreeSet<Skipped>,
    last_failure: Option<SourceFailure>,
}

impl RemoteKeys {
    /// The error names the field.
    pub fn new(config: JwksConfig, allowed: Vec<Algorithm>) -> Result<RemoteKeys, String> {
        let mut server = config.server.clone();
        let (origin, target) = split_url(&config.server.url);
        let query = target.find('?').map_or(0, |at| target.len() - at);
        server.url.truncate(server.url.len() - query);
        let problems = server.problems();
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        // The path is part of the request, not of the connector, which would remove a slash at its end.
        let connector = HttpConnectorConfig {
            url: origin.to_owned(),
            ..server.clone()
        };
        Ok(RemoteKeys {
            connector: HttpConnector::new(&connector).map_err(|problems| problems.join("; "))?,
            target: target.to_owned(),
            // Without the query, which can contain a secret: the URL is logged.
            config: JwksConfig { server, ..config },
            allowed,
            state: RwLock::default(),
            finished: watch::Sender::new(0),
            wanted: Notify::new(),
            // The first request follows at once: logins wait for it.
            is_requesting: AtomicBool::new(true),
            last_start: Mutex::new(None),
            waiting: Semaphore::new(WAITING_MAX),
        })
    }

    pub fn current(&self, now: Instant) -> Option<Arc<Keys>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let age = now.saturating_duration_since(state.confirmed?);
        match self.config.max_age.is_some_and(|max| age > max) {
            true => None,
            false => state.keys.clone(),
        }
    }

    /// Waits for new keys. Returns at once if the last request was a short time ago.
    pub async fn renew(&self) {
        let mut finished = self.finished.subscribe();
        if !self.is_requesting.load(Ordering::SeqCst) {
            let last = *self.last_start.lock().unwrap_or_else(PoisonError::into_inner);
            if last.is_some_and(|last| last.elapsed() < REQUEST_GAP) {
                return;
            }
            self.wanted.notify_one();
        }
        let Ok(_permit) = self.waiting.try_acquire() else {
            return;
        };
        // A time limit or a closed channel leaves the keys as they are.
        let _ = tokio::time::timeout(self.config.timeout, finished.changed()).await;
    }

    /// Requests the keys, again after `refresh_interval`, and when a login needs an unknown key. Never returns.
    pub async fn run(self: Arc<Self>) {
        let mut failures = 0;
        loop {
            self.is_requesting.store(true, Ordering::SeqCst);
            *self.last_start.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            let answer = self.request().await.and_then(|answer| self.store(answer));
            self.is_requesting.store(false, Ordering::SeqCst);
            self.finished.send_modify(|count| *count += 1);
            let pause = match answer {
                Ok(()) => {
                    failures = 0;
                    self.config.refresh_interval
                }
                Err(reason) => {
                    let pause = retry_pause(failures).min(self.config.refresh_interval);
                    failures = failures.saturating_add(1);
                    self.log_failure(&reason);
                    self.record_failure(reason);
                    pause
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wanted.notified() => self.wait_for_gap().await,
            }
        }
    }

    /// Requests the keys once, for a caller that does not run [`RemoteKeys::run`].
    pub async fn request_now(&self) -> Result<(), String> {
        self.request().await.and_then(|answer| self.store(answer))
    }

    async fn wait_for_gap(&self) {
        let last = *self.last_start.lock().unwrap_or_else(PoisonError::into_inner);
        let since = last.map_or(REQUEST_GAP, |last| last.elapsed());
        tokio::time::sleep(REQUEST_GAP.saturating_sub(since)).await;
    }

    async fn request(&self) -> Result<Vec<u8>, String> {
        let question = HttpQuestion {
            method: "GET".to_owned(),
            path: match self.target.as_str() {
                "" => Vec::new(),
                target => vec![UrlPart::Literal(target.to_owned())],
            },
            headers: vec![("accept".to_owned(), "application/json".to_owned())],
            body: Vec::new(),
            timeout: self.config.timeout,
            answer_bytes_max: SET_BYTES_MAX,
        };
        // The time limit of the question does not include waiting for a connection.
        let answer = tokio::time::timeout(self.config.timeout, self.connector.ask(question)).await;
        let answer = answer.map_err(|_| format!("no response within {} ms", self.config.timeout.as_millis()))??;
        match answer.status {
            200 => Ok(answer.body),
            status => Err(format!("the server answered {status} {}", answer.reason)),
        }
    }

    fn store(&self, answer: Vec<u8>) -> Result<(), String> {
        let parsed = jwks::parse(&answer, &self.allowed)?;
        let reasons: Vec<String> = parsed.skipped.iter().map(ToString::to_string).collect();
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.skipped != parsed.skipped && !reasons.is_empty() {
            tracing::warn!(url = %self.config.server.url, "the key set has keys that are not used: {}", reasons.join("; "));
        }
        state.skipped = parsed.skipped;
        if parsed.keys.is_empty() {
            // The server has withdrawn the old keys.
            state.keys = None;
            return Err("the key set has no usable key".to_owned());
        }
        state.confirmed = Some(Instant::now());
        if state.answer == answer && state.keys.is_some() {
            return Ok(());
        }
        state.generation += 1;
        let generation = state.generation;
        tracing::info!(url = %self.config.server.url, keys = parsed.keys.len(), "new keys for JSON Web Tokens");
        state.keys = Some(Arc::new(Keys::new(parsed.keys, generation)));
        state.answer = answer;
        Ok(())
    }

    /// Returns the last failed request since the start of the server.
    pub fn last_failure(&self) -> Option<SourceFailure> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.last_failure.clone()
    }

    fn record_failure(&self, reason: String) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let at = SystemTime::now();
        state.last_failure = Some(SourceFailure { at, reason });
    }

    fn log_failure(&self, reason: &str) {
        let url = &self.config.server.url;
        match self.current(Instant::now()) {
            Some(_) => tracing::warn!(%url, reason, "cannot renew the keys for JSON Web Tokens, using the old ones"),
            None => tracing::error!(%url, reason, "no keys for JSON Web Tokens: their logins are rejected"),
        }
    }
}

fn retry_pause(failures: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << failures.min(16)).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use base64ct::{Base64UrlUnpadded, Encoding};
    use tokio::runtime::Builder;

    use super::*;

    /// Starts a server whose key set has another key in each answer. Returns its URL.
    fn key_server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let numbers = (0..=u8::MAX).cycle();
            for (number, mut stream) in numbers.zip(listener.incoming().map_while(Result::ok)) {
                let _ = stream.read(&mut [0; 4096]);
                let x = Base64UrlUnpadded::encode_string(&[number; 32]);
                let body = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"k{number}","x":"{x}"}}]}}"#);
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        format!("http://{address}/keys")
    }

    /// No login asks for keys.
    #[test]
    fn keys_are_requested_again_after_the_interval() {
        let config = JwksConfig {
            server: HttpConnectorConfig {
                url: key_server(),
                headers: Default::default(),
                connections_max: 2,
                connect_timeout_ms: 60_000,
                idle_timeout_ms: 30_000,
                tls: Default::default(),
            },
            refresh_interval: Duration::from_millis(10),
            max_age: None,
            timeout: Duration::from_secs(60),
        };
        let keys = Arc::new(RemoteKeys::new(config, Vec::new()).unwrap());
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut finished = keys.finished.subscribe();
            let running = tokio::spawn(keys.clone().run());
            let mut generations = BTreeSet::new();
            while generations.len() < 3 {
                finished.changed().await.unwrap();
                generations.extend(keys.current(Instant::now()).map(|keys| keys.generation));
            }
            running.abort();
        });
        assert!(keys.last_failure().is_none());
    }
}
