use super::*;

#[test]
fn volumes_are_listed_with_their_claims_and_pods() {
    let volume = |name: &str, claim: &str, state| VolumeReport {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        claim: claim.to_owned(),
        state,
        driver: Some("local".to_owned()),
        path: None,
        created: true,
        pods: Vec::new(),
        workloads: Vec::new(),
    };
    let volumes = [
        VolumeReport {
            pods: vec!["default/db-box".to_owned(), "default/dump-box".to_owned()],
            ..volume("mirrorlet_default_db", "db", VolumeState::Bound)
        },
        VolumeReport {
            driver: None,
            path: Some("/mnt/ssd".to_owned()),
            created: false,
            workloads: vec!["cronjob/default/backup".to_owned()],
            ..volume("ssd", "fast", VolumeState::Bound)
        },
        volume("mirrorlet_default_old", "old", VolumeState::Released),
    ];
    let table = render(&volumes);
    insta::assert_snapshot!(anstream::adapter::strip_str(&table).to_string(), @r"
    NAME                   STATE     CLAIM         STORAGE       USED BY
    mirrorlet_default_db   Bound     default/db    driver local  default/db-box, default/dump-box
    ssd                    Bound     default/fast  /mnt/ssd      cronjob/default/backup
    mirrorlet_default_old  Released  default/old   driver local
    ");
    assert_eq!(render(&[]), "no claim has a volume\n");
}

#[test]
fn who_is_not_asked_learns_of_the_flag() {
    assert_eq!(not_agreed(true), "nothing was removed");
    let words = "nothing was removed: the question got no answer; pass --yes";
    assert_eq!(not_agreed(false), words);
}
