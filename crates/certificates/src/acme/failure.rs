//! Why a certificate was not obtained, and what the administrator can do.

use std::fmt;
use std::time::Duration;

use instant_acme::{Error, Problem};

use super::client::Exchange;

const TYPE_PREFIX: &str = "urn:ietf:params:acme:error:";
/// Texts of an authority are shown up to this length.
const SHOWN_CHARS: usize = 500;

#[derive(Debug)]
pub struct Failure {
    reason: String,
    advice: Option<&'static str>,
    /// The authority did not answer, or the server could not store something: a further attempt soon uses no order.
    pub is_unreachable: bool,
    /// How long the authority wants to have no further request.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.advice {
            None => f.write_str(&self.reason),
            Some(advice) => write!(f, "{}: {advice}", self.reason),
        }
    }
}

impl Failure {
    pub fn rejected(reason: String) -> Failure {
        Failure {
            reason,
            advice: None,
            is_unreachable: false,
            retry_after: None,
        }
    }

    /// The server cannot store something.
    pub fn unwritten(reason: String) -> Failure {
        Failure {
            is_unreachable: true,
            ..Failure::rejected(reason)
        }
    }

    /// An error of a request. `step` names the request.
    pub fn of(step: &str, error: &Error, exchange: &Exchange) -> Failure {
        let state = exchange.state();
        let (reason, advice) = match error {
            Error::Api(problem) => (problem_text(problem), advice(kind(problem))),
            other if state.is_unreachable => (
                shown(&other.to_string()),
                Some("check tls.acme.directory, tls.acme.ca_file and the network"),
            ),
            other => (shown(&other.to_string()), None),
        };
        Failure {
            reason: format!("{step}: {reason}"),
            advice,
            is_unreachable: state.is_unreachable,
            retry_after: state.retry_after,
        }
    }

    /// The authority could not verify that the server owns its domains.
    pub fn of_challenges(problems: &[(String, Problem)], challenge_advice: &'static str) -> Failure {
        let texts = problems.iter();
        let texts: Vec<String> = texts
            .map(|(domain, problem)| format!("{domain}: {}", problem_text(problem)))
            .collect();
        let specific = problems.iter().find_map(|(_, problem)| match kind(problem) {
            "caa" => advice("caa"),
            _ => None,
        });
        Failure {
            advice: Some(specific.unwrap_or(challenge_advice)),
            ..Failure::rejected(format!("the authority rejects {}", texts.join("; ")))
        }
    }

    pub fn with_advice(self, advice: &'static str) -> Failure {
        Failure {
            advice: Some(advice),
            ..self
        }
    }
}

/// Whether the authority does not know the account.
pub fn is_unknown_account(error: &Error) -> bool {
    is_of_kind(error, "accountDoesNotExist")
}

pub fn is_of_kind(error: &Error, wanted: &str) -> bool {
    matches!(error, Error::Api(problem) if kind(problem) == wanted)
}

/// Whether the authority has decided about an order. A later request for the same order would have the same answer.
pub fn is_final(error: &Error) -> bool {
    const NOT_YET: [&str; 5] = [
        "badNonce",
        "orderNotReady",
        "rateLimited",
        "serverInternal",
        "userActionRequired",
    ];
    matches!(error, Error::Api(problem)
        if !NOT_YET.contains(&kind(problem)) && problem.status.is_none_or(|status| status < 500 && status != 429))
}

/// The type of a problem (RFC 8555, 6.7) without its prefix.
fn kind(problem: &Problem) -> &str {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    kind.strip_prefix(TYPE_PREFIX).unwrap_or(kind)
}

fn problem_text(problem: &Problem) -> String {
    let mut text = problem.detail.clone().unwrap_or_else(|| "no reason given".to_owned());
    for one in &problem.subproblems {
        if let Some(detail) = &one.detail {
            text.push_str("; ");
            text.push_str(detail);
        }
    }
    match kind(problem) {
        "" => shown(&text),
        kind => format!("{} ({})", shown(&text), shown(kind)),
    }
}

/// Text of the authority: without control characters, and not too long.
fn shown(text: &str) -> String {
    text.chars()
        .map(|one| if one.is_control() { ' ' } else { one })
        .take(SHOWN_CHARS)
        .collect()
}

fn advice(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "rateLimited" => "the authority limits the number of orders; the server waits as long as it says",
        "rejectedIdentifier" | "unsupportedIdentifier" => {
            "the authority does not issue certificates for a name in tls.acme.domains; remove it"
        }
        "caa" => "a CAA record in the DNS forbids this authority; change the record, or tls.acme.directory",
        "externalAccountRequired" => {
            "the authority needs an account of its own web site: set tls.acme.eab_key_id and tls.acme.eab_key_file"
        }
        "invalidContact" | "unsupportedContact" => "correct tls.acme.contact",
        "userActionRequired" => "the terms of service have changed: read them, and agree at the authority",
        "accountDoesNotExist" => {
            "the authority does not know the account in the data directory; delete acme/account-*.json there, and the \
             server registers a new one"
        }
        "unauthorized" => "the account or the external account binding is not valid at this authority",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(kind: &str, detail: &str) -> Problem {
        Problem {
            r#type: Some(format!("{TYPE_PREFIX}{kind}")),
            detail: Some(detail.to_owned()),
            status: None,
            subproblems: Vec::new(),
        }
    }

    #[test]
    fn failure_has_reason_and_advice() {
        let error = Error::Api(problem("rejectedIdentifier", "no\nsuch name"));
        let text = Failure::of("order", &error, &Exchange::default()).to_string();
        assert_eq!(
            text,
            "order: no such name (rejectedIdentifier): the authority does not issue certificates for a name in \
             tls.acme.domains; remove it"
        );
    }
}
