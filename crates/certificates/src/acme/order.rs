//! One order: account, challenges, certificate. An order that the authority was asked to complete is continued after a
//! failure or a restart (`order_file.rs`).

use std::fs;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};

use super::certificate::{CheckError, NewCertificate};
use super::client::Exchange;
use super::failure::{Failure, is_final, is_unknown_account};
use super::order_file::{self, OrderFile};
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
    if let Some(mut file) = OrderFile::read(config) {
        match resume(config, &account, &file, &exchange).await {
            Ok(Some(certificate)) => return store(config, &certificate),
            Ok(None) => {}
            Err(failure) if file.count_failure(config)? => return Err(failure),
            Err(failure) => tracing::warn!(
                reason = %failure,
                "the order of the last attempts cannot be continued; ordering again"
            ),
        }
    }
    let mut file = OrderFile::create(config)?;
    let order = match new_order(config, &account).await {
        Err(error) if is_unknown_account(&error) && config.external_account.is_none() => {
            let account = account::register_again(config, &exchange).await?;
            new_order(config, &account).await
        }
        other => other,
    };
    let mut order = order.map_err(|error| Failure::of("new order", &error, &exchange))?;
    file.set_url(config, order.url())?;
    let _answers = Answers(challenges);
    authorize(config, challenges, &mut order, &exchange).await?;
    let certificate = finish(config, &mut order, &file, &exchange).await?;
    store(config, &certificate)
}

/// Continues the order of the file. `None`: another order is necessary.
async fn resume(
    config: &AcmeConfig,
    account: &Account,
    file: &OrderFile,
    exchange: &Exchange,
) -> Result<Option<NewCertificate>, Failure> {
    let Some(url) = file.url() else { return Ok(None) };
    let mut order = match account.order(url.to_owned()).await {
        Ok(order) => order,
        // The authority no longer knows the order, or the account.
        Err(error) if is_final(&error) => return Ok(None),
        Err(error) => return Err(Failure::of("order of the last attempt", &error, exchange)),
    };
    match order.state().status {
        OrderStatus::Ready | OrderStatus::Processing | OrderStatus::Valid => {}
        // Its challenges may have failed while nothing answered them.
        OrderStatus::Pending | OrderStatus::Invalid => return Ok(None),
    }
    tracing::info!(order = url, "continuing the order of the last attempt");
    let certificate = match finish(config, &mut order, file, exchange).await {
        Ok(certificate) => certificate,
        // The order has failed for good. The next one may have another result.
        Err(failure) if OrderFile::read(config).is_none() => {
            tracing::warn!(order = url, reason = %failure, "the order of the last attempt has failed; ordering again");
            return Ok(None);
        }
        Err(failure) => return Err(failure),
    };
    // An old order: its certificate was in use already.
    Ok(Some(certificate).filter(|certificate| !certificate.is_due()))
}

/// Writes the certificate, and deletes the file of its order.
fn store(config: &AcmeConfig, certificate: &NewCertificate) -> Result<i64, Failure> {
    let not_after_unix_s = certificate.store(config).map_err(Failure::unwritten)?;
    discard(config);
    Ok(not_after_unix_s)
}

/// Deletes the file of an order that has a result.
fn discard(config: &AcmeConfig) {
    if let Err(error) = order_file::remove(config) {
        // The next attempt finds the result again.
        tracing::warn!(%error, "cannot delete the file of the last order");
    }
}

/// Deletes the file of an order whose certificate is stored.
pub fn discard_stored(config: &AcmeConfig) {
    let stored = fs::read_to_string(certificate::path(&config.files)).unwrap_or_default();
    if OrderFile::read(config).is_some_and(|file| file.has_key_of(&stored)) {
        discard(config);
    }
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

/// Proves that the server owns the domains.
async fn authorize(
    config: &AcmeConfig,
    challenges: &Challenges,
    order: &mut Order,
    exchange: &Exchange,
) -> Result<(), Failure> {
    answer(config, challenges, order, exchange).await?;
    match order.poll_ready(&POLLING).await {
        Ok(OrderStatus::Ready) => Ok(()),
        Ok(_) => Err(rejection(config, order, None, exchange).await),
        Err(error) => Err(rejection(config, order, Some(error), exchange).await),
    }
}

/// Requests the certificate of an order whose domains are authorized, if that was not done before, and fetches it.
async fn finish(
    config: &AcmeConfig,
    order: &mut Order,
    file: &OrderFile,
    exchange: &Exchange,
) -> Result<NewCertificate, Failure> {
    let failed = |step: &'static str| {
        move |error: Error| {
            if is_final(&error) {
                discard(config);
            }
            Failure::of(step, &error, exchange)
        }
    };
    if order.state().status == OrderStatus::Ready {
        let request = file.request().map_err(|reason| {
            discard(config);
            Failure::rejected(reason)
        })?;
        let finalized = order.finalize_csr(&request).await;
        finalized.map_err(failed("certificate request"))?;
    }
    let chain = order.poll_certificate(&POLLING).await.map_err(failed("certificate"))?;
    match NewCertificate::check(config, file.key_pem(), &chain) {
        Ok(certificate) => Ok(certificate),
        Err(CheckError::Unwritten(reason)) => Err(Failure::unwritten(reason)),
        Err(CheckError::Unusable(reason)) => {
            discard(config);
            Err(Failure::rejected(reason))
        }
    }
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
