use super::*;

#[test]
fn a_server_is_avoided_that_answers_nothing() {
    let second = Duration::from_secs(1);
    let start = Instant::now();
    let mut health = Health::default();
    health.record::<()>(&Err(NetError::Timeout), start, start + second);
    assert!(health.is_avoided(start + AVOIDED));
    assert!(!health.is_avoided(start + second + AVOIDED));
    health.record(&Ok(()), start + second, start + 2 * second);
    assert!(!health.is_avoided(start + 2 * second));

    // A name that nobody answers, while the server answers others.
    health.record::<()>(&Err(NetError::Timeout), start, start + 5 * second);
    assert!(!health.is_avoided(start + 5 * second));
    let error = DnsError::ResponseCode(ResponseCode::ServFail);
    health.record::<()>(&Err(error.into()), start, start + 6 * second);
    assert!(!health.is_avoided(start + 6 * second));
    // Our own bound says nothing about the server.
    health.record::<()>(&Err(NetError::Busy), start + 7 * second, start + 8 * second);
    assert!(!health.is_avoided(start + 8 * second));

    health.record::<()>(
        &Err(NetError::NoConnections),
        start + 7 * second,
        start + 8 * second,
    );
    assert!(health.is_avoided(start + 8 * second));
}

#[test]
fn codes_that_need_edns_are_failures() {
    for code in [
        ResponseCode::BADVERS,
        ResponseCode::BADCOOKIE,
        ResponseCode::Unknown(3841),
    ] {
        assert_eq!(passed_on(code), ResponseCode::ServFail);
    }
    for code in [
        ResponseCode::NXDomain,
        ResponseCode::Refused,
        ResponseCode::NotAuth,
    ] {
        assert_eq!(passed_on(code), code);
    }
}
