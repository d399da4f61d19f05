"""The most frequent words of some languages; prose has many of them, menus and captions few."""

STOP_WORDS = (
    "the of and to a in is that it was for on are as with his they at be this from have or by one had not but "
    "what all were when we there can an your which their said if do will each about how up out them then she many "
    "some so these would other into has more her two like him see time could no make than first been its who now "
    "people my made over did down only way find use may water long little very after words called just where most "
    "know you i he der die und den von zu das mit sich des auf für ist im dem nicht ein eine als auch es werden "
    "aus er hat dass sie nach wird bei einer um am sind noch wie einem über einen zum war haben nur oder aber vor "
    "zur bis mehr durch man sein wurde sei ich wir ihr de la le et les en un du une que est pour qui dans par "
    "plus pas au sur ne se ce il sont avec ou son aux mais comme tout nous sa fait été aussi leur bien peut ces y "
    "elle vous je el lo por qué me una te los con para mi está si pero las su yo tu del al como más este ya todo "
    "esta muy ha sobre también che di e per è non da sono ma ho nel alla più anche come dei della questo o em com "
    "não uma os na dos mas ao ele tem seu sua quando muito nos já eu também só pelo pela van het een dat niet met "
    "op voor zijn aan maar om ook dan naar bij nog uit door wordt worden deze w z się nie że jest jak po co za "
    "ale od przez dla być tego и в не на что с по как это он а его но к она из у за от так же то для вы бы мы они "
    "был och att det som är på för av med till inte ett har jag var men ve bir bu için ile çok"
).split()
