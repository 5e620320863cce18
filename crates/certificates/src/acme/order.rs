//! One order: account, challenges, certificate.

use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};

use super::client::Exchange;
use super::failure::{Failure, is_unknown_account};
use super::{AcmeConfig, ChallengeKind, account, certificate, challenges::Challenges};

/// How often the authority is asked for the state of an order, and for how long.
const POLLING: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .backoff(1.5)
    .timeout(Duration::from_secs(180));

/// Obtains a certificate and writes it to its file. Returns when it expires.
pub async fn obtain(config: &AcmeConfig, challenges: &Challenges) -> Result<i64, Failure> {
    let exchange = Exchange::default();
    let account = account::open(config, &exchange).await?;
    let order = match new_order(config, &account).await {
        Err(error) if is_unknown_account(&error) && config.external_account.is_none() => {
            let account = account::register_again(config, &exchange).await?;
            new_order(config, &account).await
        }
        other => other,
    };
    let order = order.map_err(|error| Failure::of("new order", &error, &exchange))?;
    let _answers = Answers(challenges);
    complete(config, challenges, order, &exchange).await
}

/// Removes the answers of the order at its end.
struct Answers<'a>(&'a Challenges);

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

async fn new_order(config: &AcmeConfig, account: &Account) -> Result<Order, Error> {
    let names: Vec<Identifier> = config.domains.iter().cloned().map(Identifier::Dns).collect();
    account.new_order(&NewOrder::new(&names)).await
}

async fn complete(
    config: &AcmeConfig,
    challenges: &Challenges,
    mut order: Order,
    exchange: &Exchange,
) -> Result<i64, Failure> {
    answer(config, challenges, &mut order, exchange).await?;
    match order.poll_ready(&POLLING).await {
        Ok(OrderStatus::Ready) => {}
        Ok(_) => return Err(rejection(config, &mut order, None, exchange).await),
        Err(error) => return Err(rejection(config, &mut order, Some(error), exchange).await),
    }
    let failed = |step: &'static str| move |error: Error| Failure::of(step, &error, exchange);
    let key = order.finalize().await.map_err(failed("certificate request"))?;
    let chain = order.poll_certificate(&POLLING).await.map_err(failed("certificate"))?;
    certificate::store(config, &key, &chain).map_err(Failure::rejected)
}

/// Prepares the answers to the challenges of the order, and reports each to the authority.
async fn answer(
    config: &AcmeConfig,
    challenges: &Challenges,
    order: &mut Order,
    exchange: &Exchange,
) -> Result<(), Failure> {
    let failed = |error: Error| Failure::of("authorization", &error, exchange);
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(failed)?;
        let domain = authorization.identifier().to_string();
        match authorization.status {
            AuthorizationStatus::Pending => {}
            // An earlier order has verified the domain.
            AuthorizationStatus::Valid => continue,
            status => {
                return Err(Failure::rejected(format!(
                    "the authority's authorization of {domain} is {status:?} instead of pending"
                )));
            }
        }
        let (kind, name) = match config.challenge {
            ChallengeKind::Http01 => (ChallengeType::Http01, "http-01"),
            ChallengeKind::TlsAlpn01 => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
        };
        let mut challenge = authorization.challenge(kind).ok_or_else(|| {
            Failure::rejected(format!(
                "the authority does not offer the challenge {name} for {domain}"
            ))
            .with_advice("set tls.acme.challenge to the other one")
        })?;
        let key_authorization = challenge.key_authorization();
        match config.challenge {
            ChallengeKind::Http01 => challenges.add_token(&challenge.token, key_authorization.as_str()),
            ChallengeKind::TlsAlpn01 => challenges
                .add_domain(&domain, key_authorization.digest().as_ref())
                .map_err(Failure::rejected)?,
        }
        challenge.set_ready().await.map_err(failed)?;
    }
    Ok(())
}

/// Asks the authority why it rejected the order. Only the authorizations have the reason.
async fn rejection(config: &AcmeConfig, order: &mut Order, error: Option<Error>, exchange: &Exchange) -> Failure {
    // Before further requests change it.
    let failure = error.map(|error| Failure::of("order", &error, exchange));
    if failure.as_ref().is_some_and(|failure| failure.is_unreachable) {
        return failure.unwrap_or_else(|| Failure::rejected("the authority does not answer".to_owned()));
    }
    let mut problems: Vec<(String, Problem)> = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if authorization.refresh().await.is_err() {
            continue;
        }
        let domain = authorization.identifier().to_string();
        let found = authorization
            .challenges
            .iter()
            .filter_map(|challenge| challenge.error.clone());
        problems.extend(found.map(|problem| (domain.clone(), problem)));
    }
    if problems.is_empty() {
        return failure
            .unwrap_or_else(|| Failure::rejected("the authority rejects the order without a reason".to_owned()));
    }
    Failure::of_challenges(
        &problems,
        match config.challenge {
            ChallengeKind::Http01 => {
                "each domain must resolve to this server, and port 80 must lead to tls.acme.http_bind from the Internet"
            }
            ChallengeKind::TlsAlpn01 => {
                "each domain must resolve to this server, and port 443 must lead to tls.acme.tls_alpn_bind from the \
                 Internet"
            }
        },
    )
}
