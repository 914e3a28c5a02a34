"""Stop words: words that say nothing about an answer, folded as `wording` folds a text.

Eight languages, and pairs of characters of Japanese, Chinese and Korean.

A word that says something in one of the languages is in no list: the German "die" and "man", the
French "sur". Words that deny are content.
"""

from __future__ import annotations

from typing import Final

_ENGLISH = """
    a about actually also although am an and any are as at be because been being both but by can
    could did do does done each either even ever for from had has have having he her hers here him
    his how however i if in indeed into is it its itself just may me might more most much must my of
    often on only or other our out over own per quite rather really shall she should since so some
    still such than that the their theirs them then there these they this those though through to
    too under until up upon us very was we were what when where whether which while who whom whose
    why will with within would yet you your yours ca wo
    according answer answers assistant based basically called certainly commonly considered correct
    course conclusion final finally following generally given great hello help hence hi hope
    information known language like likely mean means model okay ok please probably provide provided
    provides question reasoning refer referred refers result say says sorry specific specifically
    step sure therefore think thought thus typically use used using usually well know
    boxed text json st nd rd th
"""
_GERMAN = """
    aber als antwort auch auf aus bei bis da dabei damit dann das dass dem denn der deren des
    dessen dies diese diesem diesen dieser dieses doch du durch ein eine einem einen einer eines er
    es etwa fur gibt habe haben hatte hier ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in ins
    ist jede jeder jedes kann konnen lautet mehr nach nur ob oder sehr sein seine seinem
    seinen seiner seit sich sie sind so somit und uber um unter vom von vor waren wegen weil welche
    welcher welches wenn werden wie wir wird wo wurde wurden zu zum zur zwischen
"""
_FRENCH = """
    ainsi alors au aux avec ce cela ces cet cette ceux comme donc du elle elles en est et etait
    etaient ete etre eux il ils je la le les leur leurs lui mais nous ont ou par peut pour qu
    que quel quelle qui reponse sa se selon ses sont un une vers voici vous
"""
_SPANISH = """
    al como con cual cuando de del desde donde el ella ellas ellos entre era eran eres es esa ese
    eso esta estaba estan este esto fue fueron ha han hay las les lo los mas muy nos para pero por
    porque que quien respuesta segun su sus tambien una unas uno unos usted y
"""
_ITALIAN = """
    agli ai al alla alle allo anche che chi col come cui dagli dai dal dalla dalle degli dei
    del della delle dello di e ed era erano gli ha hanno ho il io negli nei nel nella nelle nello
    noi per piu quale quando quella quelle quelli quello questa queste questi questo risposta sono
    stata stato sua sue sui sul sulla sulle suo uno
"""
_PORTUGUESE = """
    ao aos aquela aquele as ate com da das do dos ela elas ele eles em entao era essa esse esta este
    eu foi foram isso isto mais mas na nas nos num numa o os ou pela pelas pelo pelos porque qual
    quem resposta sao se sua suas tambem tem um uma voce
"""
_DUTCH = """
    antwoord bij dat de deze dit een en er het hij ik in is je maar met naar of om onder op
    ook te tot uit van voor waar werd wie wordt zich zij zijn ze
"""
_RUSSIAN = """
    а более был была были было быть в во вот все где для до его ее если есть еще же за и из или им
    их к как когда которыи которая которое которые ли мы на над но о об он она они оно от ответ по
    под при с со так также там то тот у что чтобы эта эти это этот я является
"""
_UNSPACED = """
    です ます した でし まし して こと 答え えは 答案 案是 正确 的是
    입니 니다 습니 정답 답은 것은
"""  # pairs of characters, as `wording` cuts writing without spaces

STOP_WORDS: Final = frozenset(
    word
    for words in (
        _ENGLISH, _GERMAN, _FRENCH, _SPANISH, _ITALIAN, _PORTUGUESE, _DUTCH, _RUSSIAN, _UNSPACED
    )
    for word in words.split()
)  # fmt: skip
