//! Databases that are slow. The tests are the same for each database with a server of its own.

use super::faults::{Proxy, uncached};
use super::*;

for_each_database!(@ postgresql mysql mongodb redis: a_slow_database_rejects_clients_until_it_answers);

fn a_slow_database_rejects_clients_until_it_answers<C: Clients>() {
    let clients = C::new();
    let proxy = Proxy::new(clients.address());
    let place = at(&clients.place(), &proxy.address);
    let timeout = [("timeout", text("1s"))];
    let server = clients.start(&[&uncached()[..], &place[..], &timeout[..]].concat());
    server.wait_until("the database answers in time", |server| {
        login(server, "user", "public") == ADMITTED
    });
    proxy.pause(true);
    for _ in 0..2 {
        assert_eq!(login(&server, "user", "public"), UNAVAILABLE);
        // The next provider does not decide either: `ann` could be a user of the database.
        assert_eq!(login(&server, "ann", "local"), UNAVAILABLE);
    }
    proxy.pause(false);
    server.wait_until("the database answers again", |server| {
        login(server, "user", "public") == ADMITTED
    });
    server.wait_until("a wrong password is rejected", |server| {
        login(server, "user", "secret") == WRONG
    });
    let (_, metrics) = server.http_get("/metrics");
    let has_failed = ["timed_out", "failed"].iter().any(|result| {
        let sample = format!(
            "tidewire_auth_provider_results_total{{provider=\"{}\",result=\"{result}\"}} ",
            C::PROVIDER
        );
        let mut counts = metrics.lines().filter_map(|line| line.strip_prefix(&*sample));
        counts.any(|count| count != "0")
    });
    assert!(has_failed, "{metrics}");
}
